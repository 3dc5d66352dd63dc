// The page of `jobsdk ui`. Whatever a job has written is put in as text (textContent), never as markup; the only markup
// that is taken over are drawings, which the server makes of escaped parts.
"use strict";

const $ = id => document.getElementById(id);
const COLOURS = {Completed: "completed", Failed: "failed", TimedOut: "failed", Lost: "lost", Canceled: "stopped",
                 Preempted: "stopped", Running: "running", Starting: "running", Preparing: "running"};
const STATUSES = ["Queued", "Preparing", "Starting", "Running", "CancelRequested", "Completed", "Failed", "Canceled",
                  "TimedOut", "Preempted", "Lost"];

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

async function ask(path, options = {}) {
  const answer = await fetch(path, {...options, headers: {"x-jobsdk": "1"}});
  const data = (answer.headers.get("content-type") || "").includes("json") ? await answer.json() : await answer.text();
  if (!answer.ok) throw new Error(data.error || data);
  return data;
}

function complain(error) { $("trouble").textContent = error ? error.message || error : ""; }

function seconds(value) {
  if (value == null) return "";
  if (value < 60) return value.toFixed(1) + " s";
  const whole = Math.floor(value), pad = number => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
}

function badge(status) { return element("span", {className: "badge " + (COLOURS[status] || ""), textContent: status}); }

// -- the list of runs ----------------------------------------------------------------------------------------------

async function showRuns() {
  const rows = await ask("/api/runs?" + new URLSearchParams(new FormData($("filters"))));
  $("none").hidden = rows.length > 0;
  $("runs").tBodies[0].replaceChildren(...rows.map(run => {
    const link = element("a", {href: "/runs/" + encodeURIComponent(run.name), textContent: run.display_name});
    const created = run.submitted ? new Date(run.submitted * 1000).toLocaleString() : "";
    const took = run.started ? seconds((run.ended || Date.now() / 1000) - run.started) : "";
    const texts = [run.exit_code ?? "", run.experiment_name || "", run.compute, run.processes || "", created, took];
    return element("tr", {}, element("td", {}, link), element("td", {}, badge(run.status)),
                   ...texts.map(text => element("td", {textContent: text})));
  }));
}

function list() {
  $("list").hidden = false;
  $("filters").status.append(...STATUSES.map(name => element("option", {value: name, textContent: name})));
  let timer;
  const again = () => { clearTimeout(timer); showRuns().then(() => complain(""), complain)
                                                      .finally(() => { timer = setTimeout(again, 3000); }); };
  $("filters").addEventListener("input", again);
  $("filters").addEventListener("submit", event => event.preventDefault());
  again();
}

// -- the log: only the lines that are seen are asked for and drawn ----------------------------------------------------

class Log {
  constructor(api) {
    this.api = api;
    this.ranks = "";
    this.total = 0;
    this.pages = new Map();
    this.asked = new Set();
    this.follows = true;
    this.paused = false;
    this.hits = [];
    this.hit = -1;
    this.era = 0;
    $("view").addEventListener("scroll", () => {
      this.follows = $("view").scrollTop + $("view").clientHeight >= $("view").scrollHeight - 2 * Log.LINE;
      this.draw();
    }, {passive: true});
    new ResizeObserver(() => this.draw()).observe($("view"));
  }

  only(ranks) {
    this.ranks = ranks;
    this.era++;
    this.pages.clear(); this.asked.clear();
    this.hits = []; this.hit = -1;
    this.total = 0; this.follows = true;
    this.more();
    if ($("words").value) this.search($("words").value);
  }

  async more() {  // the log has grown, perhaps
    if (this.paused) return;
    const era = this.era;
    const {total} = await ask(`${this.api}/lines?first=0&count=0&ranks=${this.ranks}`);
    if (era !== this.era || total === this.total) return;
    for (const [page, lines] of this.pages) if (lines.length < Log.PAGE) this.pages.delete(page);
    this.total = total;
    $("lines").textContent = total.toLocaleString() + " lines";
    $("height").style.height = Math.min(total * Log.LINE, Log.HIGHEST) + "px";
    if (this.follows) $("view").scrollTop = $("view").scrollHeight;
    this.draw();
  }

  // A browser cannot make an element of any height: of very long logs a part of the height stands for a line.
  get first() {
    const view = $("view"), seen = Math.ceil(view.clientHeight / Log.LINE), most = this.total - seen;
    const way = view.scrollHeight - view.clientHeight;
    if (this.total * Log.LINE <= Log.HIGHEST) return Math.max(0, Math.floor(view.scrollTop / Log.LINE));
    return Math.max(0, Math.round(view.scrollTop / way * most));
  }

  show(number) {
    const view = $("view"), seen = Math.ceil(view.clientHeight / Log.LINE), target = Math.max(0, number - seen / 2);
    this.follows = false;
    view.scrollTop = this.total * Log.LINE <= Log.HIGHEST ? target * Log.LINE
      : target / Math.max(1, this.total - seen) * (view.scrollHeight - view.clientHeight);
    this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => { this.drawing = null; this.drawNow(); });
  }

  drawNow() {
    const view = $("view"), first = this.first, count = Math.ceil(view.clientHeight / Log.LINE) + 2;
    const rows = [], hits = new Set(this.hits);
    for (let number = first; number < Math.min(this.total, first + count); number++) {
      const line = this.line(number);
      const row = element("div", {className: "row"});
      if (line) row.append(element("b", {textContent: line[1]}), line[2]);
      if (hits.has(number)) row.classList.add(number === this.hits[this.hit] ? "here" : "hit");
      rows.push(row);
    }
    const top = this.total * Log.LINE <= Log.HIGHEST ? first * Log.LINE : view.scrollTop;
    $("rows").style.top = Math.min(top, Math.max(0, $("height").clientHeight - rows.length * Log.LINE)) + "px";
    $("rows").replaceChildren(...rows);
  }

  line(number) {
    const page = Math.floor(number / Log.PAGE), lines = this.pages.get(page);
    if (!lines) this.fetch(page);
    return lines && lines[number - page * Log.PAGE];
  }

  async fetch(page) {
    if (this.asked.has(page)) return;
    const era = this.era;
    this.asked.add(page);
    try {
      const path = `${this.api}/lines?first=${page * Log.PAGE}&count=${Log.PAGE}&ranks=${this.ranks}`;
      const {lines} = await ask(path);
      if (era !== this.era) return;
      if (this.pages.size > Log.KEPT) this.pages.delete(this.pages.keys().next().value);
      this.pages.set(page, lines);
      this.draw();
    } catch (error) { complain(error); } finally { this.asked.delete(page); }
  }

  async search(words) {
    const era = this.era;
    const hits = words ? await ask(`${this.api}/find?words=${encodeURIComponent(words)}&ranks=${this.ranks}`) : [];
    if (era !== this.era || words !== $("words").value) return;
    this.hits = hits; this.hit = -1;
    if (words) this.turn(1); else { $("hits").textContent = ""; this.draw(); }
  }

  turn(by) {
    if (!this.hits.length) { $("hits").textContent = "none"; this.draw(); return; }
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    $("hits").textContent = `${this.hit + 1} of ${this.hits.length}${this.hits.length >= 1000 ? "+" : ""}`;
    this.show(this.hits[this.hit]);
  }

  pause(paused = !this.paused) {
    this.paused = paused;
    $("pause").setAttribute("aria-pressed", paused);
    $("pause").textContent = paused ? "Go on" : "Pause";
    if (!paused) { this.follows = true; this.more().catch(complain); }
  }
}
Log.LINE = 18; Log.PAGE = 500; Log.KEPT = 40; Log.HIGHEST = 12e6;

function ranksOf(text) {  // "0,3-5" as "0,3,4,5"
  const found = [];
  for (const part of text.split(",").map(word => word.trim()).filter(Boolean)) {
    const [, low, high] = /^(\d{1,6})(?:-(\d{1,6}))?$/.exec(part) || [];
    if (low === undefined) throw new Error(`${part}: write ranks as in 0,3-5`);
    for (let rank = +low; rank <= Math.min(+(high ?? low), +low + 4096); rank++) found.push(rank);
  }
  return found.join(",");
}

// -- one run -------------------------------------------------------------------------------------------------------

function stacksText(ranks) {  // every process of each rank, with the frames of its threads, the innermost first
  const lines = [];
  for (const [rank, processes] of Object.entries(ranks)) for (const one of processes) {
    lines.push(`rank ${rank}, pid ${one.pid}: ${one.command}` + (one.why ? ` (${one.why})` : ""));
    for (const thread of one.threads || []) {
      lines.push(`  ${thread.name}`);
      for (const [name, file, number] of thread.frames) lines.push(`    ${name}  ${file}:${number}`);
    }
  }
  return lines.join("\n");
}

class Page {
  constructor(name) {
    this.name = name;
    this.api = "/api/runs/" + encodeURIComponent(name);
    this.log = new Log(this.api);
    this.rank = 0;
    this.tabs = {log: "Log", timeline: "Timeline", metrics: "Metrics", environment: "Environment", spec: "Job",
                 where: "Stacks"};
    $("run").hidden = false;
    for (const [id, title] of Object.entries(this.tabs)) {
      const button = element("button", {textContent: title, onclick: () => this.open(id)});
      button.id = "tab-" + id;
      button.setAttribute("role", "tab");
      $("tabs").append(button);
    }
    this.listen();
    this.open("log");
    this.start().catch(complain);
  }

  listen() {
    const act = (id, then) => $(id).addEventListener("click", () => {
      $(id).disabled = true;
      ask(`${this.api}/${id}`, {method: "POST"}).then(then).then(() => complain(""), complain)
        .finally(() => { $(id).disabled = this.isOver && id !== "rerun"; });
    });
    act("cancel", () => undefined);
    act("rerun", run => { location.href = "/runs/" + encodeURIComponent(run.name); });
    act("stacks", answer => {
      const lines = [...answer.groups, "", ...(answer.nodes_missing || []).map(node => `node ${node} did not answer`)];
      $("where").replaceChildren(element("pre", {textContent: lines.join("\n")}),
                                 element("pre", {textContent: stacksText(answer.ranks)}));
      this.open("where");
    });
    $("download").href = this.api + "/download";
    $("report").href = this.api + "/report";
    $("only").addEventListener("change", () => this.only($("only").value));
    let timer;
    $("words").addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.log.search($("words").value).catch(complain), 200);
    });
    $("words").addEventListener("keydown", event => {
      if (event.key === "Enter") this.log.turn(event.shiftKey ? -1 : 1);
      if (event.key === "Escape") $("words").blur();
    });
    $("back").addEventListener("click", () => this.log.turn(-1));
    $("on").addEventListener("click", () => this.log.turn(1));
    $("pause").addEventListener("click", () => this.log.pause());
    document.addEventListener("keydown", event => {
      if (/INPUT|SELECT/.test(event.target.tagName) || event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {"/": () => { this.open("log"); $("words").focus(); }, n: () => this.log.turn(1),
                    N: () => this.log.turn(-1), p: () => this.log.pause()};
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
  }

  async start() {
    const all = await ask(this.api);
    document.title = `${all.display_name} - jobsdk`;
    $("title").textContent = all.display_name;
    const layout = `${all.nodes} nodes, ${all.processes} processes, ${all.distribution || "no distribution"}`;
    $("facts").textContent = [all.name, all.compute, layout, all.experiment_name, all.command].filter(Boolean).join(" · ");
    this.take(all);
    if (all.is_over) return;
    const news = new EventSource(this.api + "/live");
    news.onmessage = event => this.take(JSON.parse(event.data));
    news.addEventListener("over", () => news.close());
    news.addEventListener("gone", () => { news.close(); complain("this run has been deleted"); });
    news.onerror = () => complain("the server does not answer");
    news.onopen = () => complain("");
    setInterval(() => { if (!this.isOver) this.clock(); }, 1000);
  }

  take(now) {
    this.now = now;
    this.isOver = now.is_over;
    this.skew = now.now - Date.now() / 1000;
    $("status").textContent = now.status + (now.exit_code ? ` (${now.exit_code})` : "");
    $("status").className = "badge " + (COLOURS[now.status] || "");
    $("card").hidden = !now.card;
    $("card").textContent = now.card;
    $("cancel").disabled = $("stacks").disabled = now.is_over;
    $("counts").textContent = Object.entries(now.counts).map(([name, count]) => `${count} ${name}`).join(", ");
    complain(now.trouble);
    this.clock();
    this.grid(now.ranks);
    this.log.more().catch(complain);
    if (this.tab !== "log" && this.tab !== "where") this.fill(this.tab).catch(complain);
  }

  clock() {
    const now = this.now, until = now.ended || Date.now() / 1000 + this.skew;
    const parts = [now.message, now.started && `${seconds(until - now.started)} since the ranks began`,
                   now.restarts && `restarted ${now.restarts} times`, ...now.warnings];
    $("message").textContent = parts.filter(Boolean).join(" · ");
  }

  grid(ranks) {
    const key = JSON.stringify(ranks);
    if (key === this.drawn) return;
    this.drawn = key;
    if ($("grid").dataset.size !== String(ranks.length)) {
      $("grid").dataset.size = ranks.length;
      const nodes = new Map();
      for (const [rank, node] of ranks) {
        if (!nodes.has(node)) nodes.set(node, element("div", {className: "node"},
                                                      element("span", {textContent: "node " + node})));
        const cell = element("button", {textContent: rank, onclick: () => this.pick(rank)});
        cell.id = "rank-" + rank;
        cell.addEventListener("mouseenter", () => this.hint(rank, cell));
        cell.addEventListener("focus", () => this.hint(rank, cell));
        nodes.get(node).append(cell);
      }
      $("grid").replaceChildren(...nodes.values());
    }
    for (const [rank, , state, code] of ranks) {
      const cell = $("rank-" + rank);
      cell.className = "cell " + state;
      cell.setAttribute("aria-label", `rank ${rank}: ${state}` + (code == null ? "" : `, exit code ${code}`));
    }
  }

  async hint(rank, cell) {
    try {
      const one = await ask(`${this.api}/ranks/${rank}`);
      const words = [`rank ${rank}: ${one.state}`, one.host && "host " + one.host, one.pid && "pid " + one.pid,
                     one.exit_code != null && "exit code " + one.exit_code].filter(Boolean).join(", ");
      cell.title = one.last ? `${words}\n${one.last}` : words;
    } catch (error) { complain(error); }
  }

  pick(rank) {
    const again = $("only").value === String(rank);
    this.rank = rank;
    $("only").value = again ? "" : rank;
    this.only($("only").value);
    if (this.tab !== "environment") this.open("log"); else this.fill("environment").catch(complain);
  }

  only(text) {
    try {
      const ranks = ranksOf(text), chosen = new Set(ranks.split(","));
      for (const cell of $("grid").querySelectorAll("button"))
        cell.setAttribute("aria-pressed", chosen.has(cell.textContent));
      this.log.only(ranks);
      complain("");
    } catch (error) { complain(error); }
  }

  open(tab) {
    this.tab = tab;
    for (const id of Object.keys(this.tabs)) {
      $(id).hidden = id !== tab;
      $("tab-" + id).setAttribute("aria-selected", id === tab);
    }
    if (tab === "log") this.log.draw(); else this.fill(tab).catch(complain);
  }

  async fill(tab) {
    const panel = $(tab);
    if (tab === "timeline") {
      const found = await ask(this.api + "/timeline");
      panel.innerHTML = found.svg;
      const first = found.until_first_step;
      panel.append(element("p", {className: "dim", textContent: `${seconds(found.seconds)} in all`
        + (first == null ? "" : `, ${seconds(first)} until the first step or line`)}));
    } else if (tab === "metrics") {
      const found = await ask(this.api + "/metrics"), names = Object.keys(found.last);
      if (!names.length) {
        panel.textContent = "Nothing has been reported: jobsdk.train.report() or MLflow would do it.";
        return;
      }
      const rows = names.map(name => element("tr", {}, element("th", {textContent: name}),
                                             element("td", {textContent: found.last[name]})));
      panel.innerHTML = found.svg;
      panel.prepend(element("table", {}, element("tbody", {}, ...rows)));
    } else if (tab === "environment") {
      const one = await ask(`${this.api}/ranks/${this.rank}`);
      const lines = Object.entries(one.environment).map(([name, value]) => `${name}=${value}`);
      panel.replaceChildren(element("p", {textContent: `rank ${one.rank} on node ${one.node}: ${one.command}`}),
                            element("pre", {textContent: lines.join("\n")}));
    } else if (tab === "spec") {
      const found = await ask(this.api + "/native");
      panel.replaceChildren(element("h2", {textContent: "job.yml"}), element("pre", {textContent: found.job}),
                            element("h2", {textContent: "what the compute was given"}),
                            element("pre", {textContent: found.native}));
    } else if (tab === "where" && !panel.firstChild) {
      panel.textContent = "The button Stacks asks the ranks where they are.";
    }
  }
}

const match = /^\/runs\/([^/]+)$/.exec(location.pathname);
if (match) new Page(decodeURIComponent(match[1])); else list();
