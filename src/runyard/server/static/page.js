// Keeps the page of an unfinished run up to date: its state, and the log that is shown.
"use strict";
const view = document.getElementById("log");
const chosen = new URLSearchParams(location.search).get("log");
const query = new URLSearchParams({ after: view.dataset.seen });
if (chosen) query.set("log", chosen);
const source = new EventSource(
  "/api/v1/runs/" + encodeURIComponent(view.dataset.run) + "/events?" + query
);
let shown = view.dataset.log;
view.scrollTop = view.scrollHeight;

source.addEventListener("log", (event) => {
  const { name, text } = JSON.parse(event.data);
  const following = view.scrollHeight - view.scrollTop - view.clientHeight < 40;
  if (name !== shown) {
    view.textContent = "";
    shown = name;
    document.getElementById("log-name").textContent = name;
  }
  view.append(text);
  if (following) view.scrollTop = view.scrollHeight;
});

source.addEventListener("run", (event) => {
  const run = JSON.parse(event.data);
  document.getElementById("state").textContent = run.state;
  document.getElementById("waiting").textContent = run.waiting;
});

// The finished page has more to show: files, the error, all metrics.
source.addEventListener("end", () => {
  source.close();
  location.reload();
});
