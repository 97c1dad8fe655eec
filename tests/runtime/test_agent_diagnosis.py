"""Why a process failed, from its exit code and the end of its log."""

import pytest

from runyard_runtime.diagnosis import diagnose, last_traceback

VALUE = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: bad learning rate"""
CHAINED = """Traceback (most recent call last):
  File "a.py", line 2, in <module>
    {}['k']
KeyError: 'k'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 4, in <module>
    raise RuntimeError('final')
RuntimeError: final"""
CUT = 'Traceback (most recent call last):\n  File "b.py", line 1, in'
PREFIXED = """[1,0]<stderr>:Traceback (most recent call last):
[1,0]<stderr>:  File "c.py", line 1, in <module>
[1,0]<stderr>:    1 / 0
[1,0]<stderr>:ZeroDivisionError: division by zero"""


@pytest.mark.parametrize(
    ("log", "last_line"),
    [
        (VALUE, "ValueError: bad learning rate"),
        (CHAINED, "RuntimeError: final"),
        (VALUE + "\nand more text\n" + CUT, "ValueError: bad learning rate"),
        (CHAINED + "\n" + VALUE + "\ntrailing words", "ValueError: bad learning rate"),
        (PREFIXED, "ZeroDivisionError: division by zero"),
        (VALUE.replace("\n", "\r\n"), "ValueError: bad learning rate"),
        (
            VALUE.replace("ValueError: bad", "my.pkg.Odd_Error: bad"),
            "my.pkg.Odd_Error: bad learning rate",
        ),
        (VALUE.replace("ValueError: bad learning rate", "KeyboardInterrupt"), "KeyboardInterrupt"),
        (CUT, ""),
        ("all is well", ""),
        ("", ""),
    ],
)
def test_the_last_complete_traceback_is_found(log: str, last_line: str) -> None:
    assert last_traceback("epoch 1\n" + log).split("\n")[-1] == last_line


def test_a_chained_traceback_keeps_only_the_final_one() -> None:
    assert "KeyError" not in last_traceback(CHAINED)


def test_an_endless_traceback_keeps_its_head_and_its_tail() -> None:
    frames = ["  File 'r.py', line 1, in f\n    f()"] * 500
    log = "\n".join(["Traceback (most recent call last):", *frames, "RecursionError: too deep"])
    kept = last_traceback(log).split("\n")
    assert len(kept) < 70
    assert (kept[0], kept[-1]) == ("Traceback (most recent call last):", "RecursionError: too deep")


@pytest.mark.parametrize(
    ("code", "log", "part"),
    [
        (1, VALUE, "ValueError: bad learning rate"),
        (1, VALUE.replace("ValueError: bad learning rate", "MemoryError"), "ran out of memory"),
        (
            1,
            VALUE.replace(
                "ValueError: bad learning rate", "ModuleNotFoundError: No module named 'torch'"
            ),
            "No module named 'torch'. Add it to the environment",
        ),
        (-9, "epoch 1", "perhaps because the machine ran out of memory"),
        (-11, VALUE, "SIGSEGV"),
        (-62, "", "number 62"),
        (137, "Killed", "exit code 137, which stands for signal SIGKILL"),
        (
            127,
            "runyard: cannot run /no/python: No such file or directory.\n",
            "Cannot run /no/python",
        ),
        (127, "sh: 1: frob: not found", "was not found"),
        (126, "", "cannot be executed"),
        (
            2,
            "python: can't open file '/w/train.py': [Errno 2] No such file or directory",
            "The script /w/train.py is not in the snapshot",
        ),
        (2, "usage: train.py\ntrain.py: error: unrecognized arguments: --x\n", "unrecognized"),
        (4, "", "exit code 4."),
        (4, "\xff\xfe odd \x00 bytes", "odd"),
    ],
)
def test_the_message_says_what_happened(code: int, log: str, part: str) -> None:
    error = diagnose(code, log.encode("latin-1"), 1)
    assert part in error["message"]
    assert (error["code"], error["rank"], error["exit_code"]) == ("UserError", 1, code)


def test_an_end_that_nobody_saw_is_not_blamed_on_memory() -> None:
    error = diagnose(None, VALUE.encode(), 0)
    assert (error["code"], error["exit_code"]) == ("ExitCodeUnknown", None)
    assert "is not known: its agent and its keeper" in error["message"]
    assert "memory" not in error["message"]
    assert error["traceback"].endswith("ValueError: bad learning rate")


def test_a_good_end_needs_no_words() -> None:
    assert diagnose(0, VALUE.encode(), 0) is None


def test_a_line_of_a_megabyte_becomes_a_short_message() -> None:
    assert len(diagnose(1, b"x" * (1 << 20), 0)["message"]) < 1000
