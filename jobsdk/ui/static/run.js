// The page of one run.
import {$, ask, complain, complainLast, counted, element, paint, seconds, withArrows} from "./common.js";
import {Log, ranksOf} from "./log.js";

const TABS = {log: "Log", timeline: "Timeline", metrics: "Metrics", environment: "Environment", spec: "Job",
              where: "Stacks"};
const DENSE = 128;  // ranks of which the cells have room for their numbers
const AGAIN = 3000;  // milliseconds between two drawings of what goes on

const exactly = value => value < 60 ? value.toFixed(3) + " s" : seconds(value);  // as the bars of the timeline say it

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

export class Page {
  constructor(name) {
    this.api = "/api/runs/" + encodeURIComponent(name);
    this.log = new Log(this.api);
    this.rank = 0;
    this.filled = {};
    $("run").hidden = false;
    for (const [id, title] of Object.entries(TABS)) {
      const button = element("button", {id: "tab-" + id, textContent: title, tabIndex: -1, onclick: () => this.open(id)});
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", id);
      $(id).setAttribute("aria-labelledby", button.id);
      $("tabs").append(button);
    }
    withArrows($("tabs"), "button");
    withArrows($("grid"), "button");
    this.listen();
    this.listenToKeys();
    const open = () => this.open(location.hash.slice(1) in TABS ? location.hash.slice(1) : "log");
    addEventListener("hashchange", open);
    open();
    this.start().catch(error => {  // there is nothing that could be shown or done
      complain("run", error);
      $("run").hidden = true;
    });
  }

  act(id, then) {
    $(id).addEventListener("click", () => {
      $(id).disabled = true;
      ask(`${this.api}/${id}`, {method: "POST"}).then(then).then(() => complain("action"), error => complain("action", error))
        .finally(() => { $(id).disabled = this.isOver && id !== "rerun"; });
    });
  }

  listen() {
    let timer;
    const sure = isAsked => {
      clearTimeout(timer);
      $("cancel").classList.toggle("sure", isAsked);
      $("cancel").textContent = isAsked ? "Really cancel?" : "Cancel";
      if (isAsked) timer = setTimeout(sure, 5000, false);
    };
    $("cancel").addEventListener("click", event => {  // days of work are not ended by one click beside the mark
      sure(!$("cancel").classList.contains("sure"));
      if ($("cancel").classList.contains("sure")) event.stopImmediatePropagation();
    });
    document.addEventListener("keydown", event => { if (event.key === "Escape") sure(false); });
    this.act("cancel", () => undefined);
    this.act("rerun", run => { location.href = "/runs/" + encodeURIComponent(run.name); });
    this.act("stacks", answer => {
      const lines = [...answer.groups, "", ...(answer.nodes_missing || []).map(node => `node ${node} did not answer`)];
      $("where").replaceChildren(element("pre", {textContent: lines.join("\n")}),
                                 element("pre", {textContent: stacksText(answer.ranks)}));
      this.open("where");
    });
    $("download").href = this.api + "/download";
    $("report").href = this.api + "/report";
    $("only").addEventListener("change", () => this.only($("only").value));
    $("start").addEventListener("change", () => this.only($("only").value));
    let typing;
    const search = () => this.log.search($("words").value).then(() => complain("log"), error => complain("log", error));
    $("words").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(search, 200); });
    $("back").addEventListener("click", () => this.log.turn(-1));
    $("on").addEventListener("click", () => this.log.turn(1));
    $("pause").addEventListener("click", () => this.log.pause());
  }

  listenToKeys() {
    $("words").addEventListener("keydown", event => {
      if (event.key === "Enter") this.log.turn(event.shiftKey ? -1 : 1);
      if (event.key !== "Escape") return;
      event.preventDefault();  // or the browser would empty it
      $("view").focus();
    });
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
    const layout = `${all.layout}, ${all.distribution || "no distribution"}`;
    $("facts").textContent = [all.name !== all.display_name && all.name, all.compute, layout, all.experiment_name, all.git && "git " + all.git,
                               ...Object.entries(all.tags).map(([key, value]) => `${key}=${value}`), all.command].filter(Boolean).join(" · ");
    this.take(all);
    if (all.is_over && !all.is_behind) return;
    this.follow();
    // A browser has few connections for all tabs: one that is not seen needs none.
    document.addEventListener("visibilitychange", () => this.follow());
    setInterval(() => { if (!this.isOver && !document.hidden) this.clock(); }, 1000);
  }

  follow() {
    this.news?.close();
    if (document.hidden || this.isEnded) return;
    const news = this.news = new EventSource(this.api + "/live");
    const end = () => { this.isEnded = true; news.close(); complain("news"); };
    news.onmessage = event => { complain("news"); this.take(JSON.parse(event.data)); };
    news.addEventListener("over", () => end());
    const gone = () => {
      end();
      complainLast("this run has been deleted");
      this.isOver = $("actions").hidden = true;
      paint($("status"), "Deleted");
    };
    news.addEventListener("gone", gone);
    news.onerror = async () => {  // the browser tries again by itself, but for answers that say no
      try { await ask(this.api); complain("news"); } catch (error) {
        if (error.isGone) return gone();
        complain("news", error);
      }
      if (news.readyState === EventSource.CLOSED && news === this.news && !this.isEnded)
        setTimeout(() => { if (news === this.news) this.follow(); }, 2000);
    };
  }

  take(now) {
    this.now = now;
    this.isOver = now.is_over;
    this.skew = now.now - Date.now() / 1000;
    paint($("status"), now.status, now.exit_code);
    $("card").hidden = !now.card;
    $("card").textContent = now.card;
    $("cancel").disabled = $("stacks").disabled = now.is_over;
    $("counts").textContent = Object.entries(now.counts).map(([name, count]) => `${count} ${name}`).join(", ");
    $("behind").hidden = !now.is_behind;
    $("bars").hidden = !now.bars.length;
    $("bars").textContent = now.bars.at(-1) || "";
    complain("engine", now.trouble);
    if ($("warnings").textContent !== now.warnings.join(""))
      $("warnings").replaceChildren(...now.warnings.map(text => element("div", {textContent: text})));
    this.clock();
    this.starts(now.restarts);
    this.grid(now.ranks);
    this.log.look(now.lines);
    if (this.tab === "timeline" || this.tab === "metrics") this.fill(this.tab);
  }

  clock() {
    const now = this.now, until = now.ended || Date.now() / 1000 + this.skew;
    const took = seconds(until - now.started);
    const parts = [!now.card && now.message, now.started && (now.is_over ? `ran for ${took}` : `${took} since the ranks began`),
                   now.silence && "last output " + now.silence, now.step, now.restarts && "restarted " + counted(now.restarts, "time")];
    const text = parts.filter(Boolean).join(" · ");
    if ($("message").textContent !== text) $("message").textContent = text;
  }

  starts(restarts) {  // of a job that was started again the logs of each start can be seen
    if (this.restarts === restarts) return;
    const isNew = this.restarts !== undefined;
    this.restarts = restarts;
    $("start").hidden = !restarts;
    $("start").replaceChildren(element("option", {value: "", textContent: "latest start"}), ...Array.from(
      {length: restarts}, (_, at) => element("option", {value: at, textContent: `start ${at + 1} of ${restarts + 1}`})));
    if (isNew) this.only($("only").value);
  }

  grid(ranks) {
    const key = JSON.stringify(ranks);
    if (key === this.drawn) return;
    this.drawn = key;
    if ($("grid").dataset.size !== String(ranks.length)) {
      $("grid").dataset.size = ranks.length;
      $("grid").classList.toggle("dense", ranks.length > DENSE);
      const nodes = new Map();
      for (const [rank, node] of ranks) {
        if (!nodes.has(node)) nodes.set(node, element("div", {className: "node"},
                                                      element("span", {textContent: "node " + node})));
        const cell = element("button", {id: "rank-" + rank, textContent: rank, tabIndex: rank ? -1 : 0,
                                        onclick: () => this.pick(rank)});
        cell.addEventListener("mouseenter", () => this.hint(rank));
        cell.addEventListener("focus", () => this.hint(rank));
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

  async hint(rank) {
    this.hinted = rank;
    try {
      const one = await ask(`${this.api}/ranks/${rank}`);
      if (this.hinted !== rank) return;
      const words = [`rank ${rank}: ${one.state}`, one.role !== "worker" && one.role, one.host && "host " + one.host, one.pid && "pid " + one.pid,
                     one.exit_code != null && "exit code " + one.exit_code,
                     one.last_output && `last output ${seconds(Date.now() / 1000 + this.skew - one.last_output)} ago`].filter(Boolean).join(", ");
      $("hint").textContent = one.last ? `${words} · ${one.last}` : words;
    } catch (error) { complain("action", error); }
  }

  pick(rank) {
    const again = $("only").value === String(rank);
    this.rank = rank;
    $("only").value = again ? "" : rank;
    this.only($("only").value);
    if (this.tab !== "environment") this.open("log"); else this.fill("environment", true);
  }

  only(text) {
    try {
      const ranks = ranksOf(text, this.now?.ranks.length ?? 0), chosen = new Set(ranks.split(","));
      for (const cell of $("grid").querySelectorAll("button"))
        cell.setAttribute("aria-pressed", chosen.has(cell.textContent));
      this.log.only(ranks, $("start").value);
      complain("ranks");
    } catch (error) { complain("ranks", error); }
  }

  open(tab) {
    this.tab = tab;
    for (const id of Object.keys(TABS)) {
      $(id).hidden = id !== tab;
      $("tab-" + id).setAttribute("aria-selected", id === tab);
      $("tab-" + id).tabIndex = id === tab ? 0 : -1;
    }
    history.replaceState(null, "", tab === "log" ? location.pathname : "#" + tab);
    if (tab === "log") this.log.draw(); else this.fill(tab, true);
  }

  fill(tab, isAsked = false) {  // of a run that goes on, again from time to time
    const since = Date.now() - (this.filled[tab] || 0);
    if (!isAsked && !this.isOver && since < AGAIN) return;
    this.filled[tab] = Date.now();
    this.draw(tab).then(() => complain("tab"), error => complain("tab", error));
  }

  async draw(tab) {
    const panel = $(tab);
    if (tab === "timeline") {
      const found = await ask(this.api + "/timeline");
      panel.innerHTML = found.svg;
      const first = found.until_first_step;
      const late = [["node", found.slowest_node], ["rank", found.slowest_rank]].filter(([, one]) => one)
        .map(([kind, one]) => `slowest ${kind}: ${one[kind]}, ${exactly(one.behind)} behind the first`);
      panel.append(element("p", {className: "dim", textContent: [`${exactly(found.seconds)} in all`,
        first != null && `${exactly(first)} until the first step or line`, ...late].filter(Boolean).join(", ")}));
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
