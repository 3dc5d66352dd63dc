// The log: only the lines that are seen are asked for and drawn.
import {$, ask, complain, counted, element} from "./common.js";

const LINE = 18, PAGE = 500, KEPT = 40, HIGHEST = 12e6;  // pixels, lines, pages, pixels

export class Log {
  constructor(api) {
    this.api = api;
    this.ranks = this.start = "";
    this.total = -1;
    this.pages = new Map();
    this.asked = new Set();
    this.follows = true;
    this.paused = false;
    this.hits = [];
    this.hit = -1;
    this.era = 0;
    $("view").addEventListener("scroll", () => {
      this.follows = $("view").scrollTop + $("view").clientHeight >= $("view").scrollHeight - 2 * LINE;
      this.draw();
    }, {passive: true});
    new ResizeObserver(() => this.draw()).observe($("view"));
  }

  get query() { return `ranks=${this.ranks}&start=${this.start}`; }

  only(ranks, start = this.start) {
    [this.ranks, this.start] = [ranks, start];
    this.era++;
    this.pages.clear(); this.asked.clear();
    this.hits = []; this.hit = -1;
    this.total = -1; this.follows = true;
    this.look();
    if ($("words").value) this.search($("words").value);
  }

  look(total) {  // the log has grown, perhaps; `total` lines it has in all
    const known = this.ranks || this.start ? undefined : total;
    this.more(known).then(() => complain("log"), error => complain("log", error));
  }

  async more(known) {
    if (this.paused && this.total >= 0) return;
    const era = this.era;
    const total = known ?? (await ask(`${this.api}/lines?first=0&count=0&${this.query}`)).total;
    if (era !== this.era || total === this.total) return;
    for (const [page, lines] of this.pages) if (lines.length < PAGE) this.pages.delete(page);
    this.total = total;
    $("lines").textContent = counted(total, "line");
    $("height").style.height = Math.min(total * LINE, HIGHEST) + "px";
    if (this.follows) $("view").scrollTop = $("view").scrollHeight;
    this.draw();
  }

  // A browser cannot make an element of any height: of very long logs a part of the height stands for a line.
  get first() {
    const view = $("view"), seen = Math.ceil(view.clientHeight / LINE), most = this.total - seen;
    const way = view.scrollHeight - view.clientHeight;
    if (this.total * LINE <= HIGHEST) return Math.max(0, Math.floor(view.scrollTop / LINE));
    return Math.max(0, Math.round(view.scrollTop / way * most));
  }

  show(number) {
    const view = $("view"), seen = Math.ceil(view.clientHeight / LINE), target = Math.max(0, number - seen / 2);
    this.follows = false;
    view.scrollTop = this.total * LINE <= HIGHEST ? target * LINE
      : target / Math.max(1, this.total - seen) * (view.scrollHeight - view.clientHeight);
    this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => { this.drawing = null; this.drawNow(); });
  }

  drawNow() {
    const view = $("view"), first = this.first, count = Math.ceil(view.clientHeight / LINE) + 2;
    const seen = [], hits = new Set(this.hits);
    for (let number = first; number < Math.min(this.total, first + count); number++) {
      const colour = !hits.has(number) ? "" : number === this.hits[this.hit] ? "here" : "hit";
      seen.push([colour, this.line(number)]);
    }
    const top = this.total * LINE <= HIGHEST ? first * LINE : view.scrollTop;
    $("rows").style.top = Math.min(top, Math.max(0, $("height").clientHeight - seen.length * LINE)) + "px";
    const key = JSON.stringify(seen);
    if (key === this.drawn) return;  // what somebody has marked in it stays marked
    this.drawn = key;
    $("rows").replaceChildren(...seen.map(([colour, line]) => {
      const row = element("div", {className: "row " + colour});
      if (line) row.append(element("b", {textContent: line[1] < 0 ? `node ${-1 - line[1]}` : line[1]}),
                           element("span", {textContent: line[2]}));
      return row;
    }));
  }

  line(number) {
    const page = Math.floor(number / PAGE), lines = this.pages.get(page);
    if (!lines) this.fetch(page);
    return lines && lines[number - page * PAGE];
  }

  async fetch(page) {
    if (this.asked.has(page)) return;
    const era = this.era;
    this.asked.add(page);
    try {
      const {lines} = await ask(`${this.api}/lines?first=${page * PAGE}&count=${PAGE}&${this.query}`);
      if (era !== this.era) return;
      if (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
      this.pages.set(page, lines);
      this.draw();
    } catch (error) { complain("log", error); } finally { if (era === this.era) this.asked.delete(page); }
  }

  async search(words) {
    const era = this.era;
    const found = words ? await ask(`${this.api}/find?words=${encodeURIComponent(words)}&${this.query}`) : {numbers: []};
    if (era !== this.era || words !== $("words").value) return;
    this.hits = found.numbers; this.hit = -1; this.isAll = found.is_all;
    if (words) this.turn(1); else { $("hits").textContent = ""; this.draw(); }
  }

  turn(by) {
    if (!this.hits.length) { $("hits").textContent = $("words").value ? "none" : ""; this.draw(); return; }
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    $("hits").textContent = `${this.hit + 1} of ${this.hits.length}${this.isAll ? "" : "+"}`;
    this.show(this.hits[this.hit]);
  }

  pause(paused = !this.paused) {
    this.paused = paused;
    $("pause").setAttribute("aria-pressed", paused);
    $("pause").textContent = paused ? "Go on" : "Pause";
    if (!paused) { this.follows = true; this.look(); }
  }
}

export function ranksOf(text, size) {  // "0,3-5" as "0,3,4,5", of a job of so many ranks
  const found = [], last = size - 1, there = size > 1 ? "ranks 0 to " + last : size ? "rank 0 only" : "no ranks yet";
  for (const part of text.split(",").map(word => word.trim()).filter(Boolean)) {
    const [, low, high] = /^(\d{1,9})(?:-(\d{1,9}))?$/.exec(part.replaceAll("last", last)) || [];
    if (low === undefined || +high < +low) throw new Error(`${part}: write ranks as in 0,3-5 or last`);
    const wrong = [low, high].find(rank => +rank > last);
    if (wrong) throw new Error(`there is no rank ${wrong}: the job has ${there}`);
    for (let rank = +low; rank <= +(high ?? low); rank++) found.push(rank);
  }
  return found.join(",");
}
