// What the list and a run's page have in common. Whatever a job has written is put in as text (textContent), never as
// markup; the only markup that is taken over are drawings, which the server makes of escaped parts.

export const $ = id => document.getElementById(id);

const COLOURS = {Completed: "completed", Failed: "failed", TimedOut: "failed", Lost: "lost", Canceled: "stopped",
                 Preempted: "stopped", Running: "running", Starting: "running", Preparing: "running"};

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, {...options, headers: {"x-jobsdk": "1"}});
  } catch {
    throw new Error("the server does not answer: has `jobsdk ui` been ended?");
  }
  const data = (answer.headers.get("content-type") || "").includes("json") ? await answer.json() : await answer.text();
  if (answer.status === 401) throw new Error("`jobsdk ui` has been started anew: open the address that it has printed");
  if (!answer.ok) throw Object.assign(new Error(data.error || data), {isGone: answer.status === 404});
  return data;
}

const troubles = new Map();
let isLast = false;

export function complain(where, error) {  // in the page's head; without an error what `where` had is well again
  if (isLast) return;
  if (error) troubles.set(where, error.message || error); else troubles.delete(where);
  const text = [...new Set(troubles.values())].join(" · ");
  if ($("trouble").textContent !== text) $("trouble").textContent = text;
}

export function complainLast(error) {  // of what explains all others, those too that are still to come
  troubles.clear();
  complain("", error);
  isLast = true;
}

export function seconds(value) {
  if (value == null) return "";
  if (value < 60) return value.toFixed(1) + " s";
  const whole = Math.floor(value), pad = number => String(number).padStart(2, "0");
  return `${Math.floor(whole / 3600)}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}`;
}

export function counted(count, word) {
  return `${count.toLocaleString()} ${word}${count === 1 ? "" : "s"}`;
}

export function paint(badge, status, code) {
  const text = status + (code ? ` (${code})` : ""), name = "badge " + (COLOURS[status] || "");
  if (badge.textContent !== text) badge.textContent = text;
  if (badge.className !== name) badge.className = name;
  return badge;
}

// One of several is in the order of the Tab key; the arrows go from there to the others.
export function withArrows(parent, selector) {
  parent.addEventListener("keydown", event => {
    const all = [...parent.querySelectorAll(selector)], at = all.indexOf(event.target);
    const to = {ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0,
                End: all.length - 1}[event.key];
    if (at < 0 || to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    all[(to + all.length) % all.length].focus();
  });
  parent.addEventListener("focusin", event => {
    if (!event.target.matches(selector)) return;
    for (const one of parent.querySelectorAll(selector + "[tabindex='0']")) one.tabIndex = -1;
    event.target.tabIndex = 0;
  });
}
