"""What a run reads and writes beside its own folder, as its agent handles it."""

from runyard_runtime import data_outputs, inputs, launch, layout
from runyard_runtime.server_link import Abandoned, Refused
from runyard_runtime.shipping import Shipper


class JobData:
    """Inputs and outputs of a job on one node."""

    def __init__(self, agent):
        self._agent = agent
        self._inputs = inputs.Inputs(agent)
        self._outputs = None

    def prepare(self):
        """Have inputs in place, and folders for outputs. InputFailed if that cannot be."""
        agent = self._agent
        try:
            self._outputs = data_outputs.DataOutputs(agent.plan, agent.folder, agent.note)
        except OSError as error:
            raise layout.InputFailed("The folder of an output cannot be made: %s." % error)
        if agent.plan.get("inputs"):
            self._inputs.prepare(lambda text: show_progress(agent, text))

    def told(self):
        """What the ranks are told: variables, and what placeholders in arguments stand for."""
        plan = self._agent.plan
        read = self._inputs.values
        written = self._outputs.values if self._outputs is not None else {}
        told = inputs.variables(plan.get("inputs") or (), read)
        told.update(data_outputs.variables(plan.get("outputs") or (), written))
        return launch.Data(told, launch.placeholders_of(read, written))

    def has_mounts(self):
        """True if there is something to look after."""
        return self._inputs.has_mounts()

    def look_after(self):
        """Mount again what was lost."""
        self._inputs.look_after()

    def checkpoint(self, link):
        """Upload what the run has finished writing."""
        self._outputs.checkpoint(link)

    def keep_again(self):
        """Have all outputs uploaded, also those that were."""
        if self._outputs is not None:
            self._outputs.keep_again()

    def has_outputs(self):
        """True if something is to be uploaded."""
        return self._outputs is not None and self._outputs.pending()

    def upload(self, link):
        """Upload the outputs; the ranks are over."""
        self._outputs.upload(link)

    def close(self):
        """Take the mounts away; the ranks are over."""
        self._inputs.close()


def show_progress(agent, text):
    """Say how far the preparing is, also to those who follow it from afar."""
    agent.note(text)
    link = agent.new_link(_do_not_wait)
    only = {agent.control_log()}
    shipper = Shipper(link, agent.plan, agent.folder, agent.own, (), only, agent.note, False)
    try:
        shipper.ship()
    except (Refused, Abandoned):
        pass  # it is shipped, or given up, with the rest
    finally:
        link.close()


def _do_not_wait(seconds):
    raise Abandoned("the server is away, and the data need not wait for it")
