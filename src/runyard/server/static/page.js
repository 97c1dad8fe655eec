// Keeps the page of an unfinished run up to date: its state, the log, metrics and files.
"use strict";
const view = document.getElementById("log");
const chosen = new URLSearchParams(location.search).get("log");
const query = new URLSearchParams({ after: view.dataset.seen });
if (chosen) query.set("log", chosen);
const source = new EventSource(
  "/api/v1/runs/" + encodeURIComponent(view.dataset.run) + "/events?" + query
);
let shown = view.dataset.log;
let last = "";

source.addEventListener("log", (event) => {
  const { name, text } = JSON.parse(event.data);
  if (name !== shown) {
    view.textContent = "";
    shown = name;
    document.getElementById("log-name").textContent = name;
  }
  view.append(text);
});

source.addEventListener("run", (event) => {
  const run = JSON.parse(event.data);
  document.getElementById("state").textContent = run.state;
  document.getElementById("waiting").textContent = run.waiting;
});

// Scripts in what is parsed so never run; the server escapes all names besides.
async function refresh() {
  if (document.hidden) return;
  const answer = await fetch(location.pathname + "?part=live").catch(() => null);
  if (!answer || !answer.ok) return;
  const text = await answer.text();
  if (text === last) return;
  last = text;
  const fresh = new DOMParser().parseFromString(text, "text/html");
  for (const id of ["logged", "kept"]) {
    const [old, next] = [document.getElementById(id), fresh.getElementById(id)];
    const open = [...old.querySelectorAll("details")].map((one) => one.open);
    next.querySelectorAll("details").forEach((one, place) => (one.open = Boolean(open[place])));
    old.replaceWith(next);
  }
}
const timer = setInterval(refresh, 3000);

// The finished page has more to show: the error, all files.
source.addEventListener("end", () => {
  source.close();
  clearInterval(timer);
  location.reload();
});
