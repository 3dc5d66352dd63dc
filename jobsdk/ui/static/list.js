// The list of runs.
import {$, ask, complain, element, paint, seconds} from "./common.js";

const STATUSES = ["Queued", "Preparing", "Starting", "Running", "CancelRequested", "Completed", "Failed", "Canceled",
                  "TimedOut", "Preempted", "Lost"];
const rows = new Map();  // by names: a row stays, so that what is focused stays so

function row(run) {
  let known = rows.get(run.name);
  if (!known) {
    const link = element("a", {href: "/runs/" + encodeURIComponent(run.name), title: run.name});
    const badge = element("span");
    const id = element("span", {className: "dim"});  // what commands want to be told
    const rest = Array.from({length: 6}, () => element("td"));
    known = {link, id, badge, rest, line: element("tr", {}, element("td", {}, link, id), element("td", {}, badge), ...rest)};
    rows.set(run.name, known);
  }
  const created = run.created ? new Date(run.created * 1000).toLocaleString() : "";
  const took = run.started ? seconds((run.ended || Date.now() / 1000) - run.started) : "";
  const texts = [run.experiment || "", run.compute || "", run.processes || "", created, took, run.silence || ""];
  const title = run.display_name || run.name;
  for (const [cell, text] of [[known.link, title], [known.id, title === run.name ? "" : run.name], ...known.rest.map((cell, at) => [cell, texts[at]])])
    if (cell.textContent !== String(text)) cell.textContent = text;
  paint(known.badge, run.status, run.exit_code);
  return known.line;
}

let turn = 0;

async function showRuns() {
  const mine = ++turn, query = new URLSearchParams([...new FormData($("filters"))].filter(([, value]) => value));
  history.replaceState(null, "", query.size ? "?" + query : location.pathname);
  const found = await ask("/api/runs?" + query);
  if (mine !== turn) return;  // what was typed meanwhile is answered later
  complain("engines", found.trouble);
  const lines = found.runs.map(row), body = $("runs").tBodies[0];
  if (lines.length !== body.children.length || lines.some((line, at) => line !== body.children[at]))
    body.replaceChildren(...lines);
  const names = new Set(found.runs.map(run => run.name));
  for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
  $("none").hidden = found.runs.length > 0;
  $("more").hidden = found.is_all;
}

export function list() {
  $("list").hidden = false;
  const form = $("filters");
  form.status.append(...STATUSES.map(name => element("option", {value: name, textContent: name})));
  for (const [name, value] of new URLSearchParams(location.search)) if (form.elements[name]) form.elements[name].value = value;
  let timer;
  const again = () => {
    clearTimeout(timer);
    if (document.hidden) return;
    showRuns().then(() => complain("list"), error => complain("list", error))
      .finally(() => { clearTimeout(timer); timer = setTimeout(again, 3000); });
  };
  form.addEventListener("input", again);
  form.addEventListener("submit", event => event.preventDefault());
  document.addEventListener("visibilitychange", again);
  again();
}
