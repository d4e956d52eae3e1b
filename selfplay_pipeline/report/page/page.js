"use strict";
// Text of episodes is hostile: it reaches the page through textContent alone.
const data = JSON.parse(document.getElementById("data").textContent);
const episodes = data.episodes.map((episode, number) => ({
  ...episode, number, state: data.states[data.state_of[number]], stateNumber: data.state_of[number], from: data.files[episode.file],
  words: [episode.id, episode.status, ...episode.players, ...episode.turns.map(turn => turn.text)].join("\n").toLowerCase(),
}));
const shortcuts = document.getElementById("shortcuts");
const form = document.getElementById("filters"), list = document.getElementById("list"), article = document.getElementById("episode");
const PAGE = 200;
let found = episodes, shown = PAGE, current = null;

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

const number = value => value.toFixed(3);
const link = (episode, text, more = {}) => make("a", {href: `#episode-${episode.number}`, text, ...more});
// Within a run what kind of episodes; elsewhere which file.
function kindOf(file) { return file.iteration !== null && file.kind ? file.kind : file.label; }
const capital = text => text[0].toUpperCase() + text.slice(1);
const statusClass = episode => episode.finished ? "agreed" : "failed";

// --- filters and list

for (const status of [...new Set(episodes.map(episode => episode.status))].sort()) form.status.append(make("option", {value: status, text: status}));
for (const kind of new Set(data.files.map(kindOf))) form.kind.append(make("option", {value: kind, text: kind}));
const iterations = [...new Set(data.files.map(file => file.iteration))].filter(iteration => iteration !== null);
for (const iteration of iterations) form.iteration.append(make("option", {value: iteration, text: iteration}));
form.iteration.parentElement.hidden = iterations.length < 2;

const ORDERS = {
  best: (a, b) => b.reward - a.reward, worst: (a, b) => a.reward - b.reward, long: (a, b) => b.turns.length - a.turns.length,
};

function filter() {
  const low = form.low.value === "" ? -1 : Number(form.low.value), high = form.high.value === "" ? 2 : Number(form.high.value);
  const words = form.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  found = episodes.filter(episode =>
    (!form.status.value || episode.status === form.status.value) && (!form.kind.value || kindOf(episode.from) === form.kind.value) &&
    (form.iteration.value === "" || episode.from.iteration === Number(form.iteration.value)) &&
    episode.reward >= low - 5e-4 && episode.reward <= high + 5e-4 && (!form.illegal.checked || episode.illegal > 0) &&
    words.every(word => episode.words.includes(word)));
  if (ORDERS[form.order.value]) found.sort(ORDERS[form.order.value]);
  shown = PAGE;
  showList();
}

function showList() {
  list.replaceChildren(...found.slice(0, shown).map(episode => make("li", {}, link(episode, "", {
    "aria-current": episode === current ? "true" : null, tabindex: -1,
    "aria-label": `${episode.id}, ${episode.from.label}, reward ${number(episode.reward)}, ${episode.status}`,
  }))));
  list.querySelectorAll("a").forEach((anchor, position) => {
    const episode = found[position];
    anchor.append(make("b", {class: statusClass(episode), text: episode.reward.toFixed(2)}),
      make("span", {text: episode.turns.length ? episode.turns[0].text.slice(0, 120) : "no turns"}),
      make("span", {class: "faint", text: `${episode.id} · ${episode.from.label}`}));
  });
  document.getElementById("count").textContent = `${found.length} of ${episodes.length} episodes`;
  document.getElementById("more").hidden = shown >= found.length;
  markCurrent();
}

// One entry of the list is in the order of tabs: the open episode's, else the first.
function markCurrent() {
  const anchors = [...list.querySelectorAll("a")], position = Math.max(0, found.indexOf(current));
  anchors.forEach((anchor, number) => {
    anchor.tabIndex = number === position ? 0 : -1;
    if (found[number] === current) anchor.setAttribute("aria-current", "true"); else anchor.removeAttribute("aria-current");
  });
  if (found.includes(current) && anchors[position]) reveal(anchors[position]);
}

list.addEventListener("keydown", event => {
  const anchors = [...list.querySelectorAll("a")], by = {ArrowDown: 1, ArrowUp: -1}[event.key];
  const next = by && anchors[anchors.indexOf(event.target) + by];
  if (next) { event.preventDefault(); next.focus(); }
});

// --- one episode

// The marks of an episode, in the order of its styles: a first kind, a second, and both.
const MARKS = ["first-mark", "second-mark"];
const SEAT_COLOURS = 4;
const isAt = (places, row, column) => (places || []).some(([r, c]) => r === row && c === column);

function table(episode, drawn) {
  const are = drawn.cells_that_are, marks = drawn.marked ? Object.entries(episode.drawing.marks) : [];
  const head = make("tr", {}, make("td", {class: "corner"}), ...drawn.columns.map(column => make("th", {scope: "col", title: drawn.full[column], text: column})));
  const rows = drawn.rows.map((name, row) => make("tr", {}, make("th", {scope: "row", title: drawn.full[name], text: name}), ...drawn.cells[row].map((text, column) => {
    const hidden = isAt(are.hidden, row, column), found = marks.map(([, places]) => isAt(places, row, column));
    const words = [hidden ? (text === data.unknown || drawn.seat === null ? "seen by nobody" : "hidden from this player") : "", ...marks.map(([name], kind) => found[kind] ? name : "")].filter(Boolean).join(", ");
    const classes = [hidden && "hidden", isAt(are.good, row, column) && "gain", isAt(are.bad, row, column) && "loss", ...MARKS.filter((_, kind) => found[kind])];
    return make("td", {class: classes.filter(Boolean).join(" ") || null, title: words || null, text}, make("span", {class: "sr", text: words}));
  })));
  const caption = drawn.seat === null ? drawn.title : `${capital(episode.seats[drawn.seat])} (${episode.players[drawn.seat]}) ${drawn.title}`;
  return make("div", {class: "drawn", tabindex: 0, role: "region", "aria-label": caption},
    make("table", {}, make("caption", {text: caption}), make("thead", {}, head), make("tbody", {}, ...rows)));
}

function legend(episode) {
  const names = Object.keys(episode.drawing.marks), chips = names.map((name, kind) => make("span", {class: `mark ${MARKS[kind]}`, text: name}));
  if (names.length === MARKS.length) chips.push(make("span", {class: "mark both", text: "both"}));
  const hides = episode.state.drawing.views.some(view => (view.cells_that_are.hidden || []).length);
  return chips.length || hides ? make("p", {class: "faint"}, ...chips.flatMap(chip => [chip, " "]), hides ? "In italics: hidden from that player." : "") : null;
}

function dialogue(episode) {
  const turns = episode.turns.map(turn => make("li", {class: `p${turn.seat % SEAT_COLOURS}`},
    make("div", {class: "who", text: `${capital(episode.seats[turn.seat])} · ${turn.action}${turn.cut ? " · cut at the token limit" : ""}`}),
    make("div", {class: "text", dir: "auto", text: turn.text}), turn.error ? make("div", {class: "error", text: `illegal: ${turn.error}`}) : null,
    turn.note ? make("div", {class: "faint", text: turn.note}) : null));
  return make("div", {class: "talk"}, make("ol", {class: "dialogue", "aria-label": "Dialogue"}, ...turns.length ? turns : [make("li", {text: "Nobody said anything."})]));
}

function mates(episode) {
  const all = episodes.filter(other => other.stateNumber === episode.stateNumber);
  const rows = all.map(other => make("tr", {}, make("th", {scope: "row"}, link(other, `episode ${other.episode}`, {"aria-current": other === episode ? "true" : null})),
    make("td", {text: number(other.reward)}), make("td", {class: statusClass(other), text: other.status}), make("td", {text: other.turns.length}), make("td", {text: other.illegal}),
    make("td", {class: "prose", text: other.drawing.decision || "–"})));
  const head = ["episode", "reward", "status", "turns", "illegal", "decision"].map(text => make("th", {scope: "col", class: text === "decision" ? "prose" : null, text}));
  return make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Episodes of this state"}, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
}

function tokens(stream, seat) {
  const line = make("p", {class: "faint", role: "status", text: "Point at a sampled token for its log-prob, or go through them with the arrow keys."});
  const box = make("div", {class: "tokens", tabindex: 0, role: "region", "aria-label": `Tokens of ${seat}`});
  let pointed = null;
  const point = span => {
    if (!span || !span.dataset.own) return;
    if (pointed) pointed.classList.remove("pointed");
    pointed = span;
    pointed.classList.add("pointed");
    line.textContent = `“${span.textContent}”: log-prob ${span.dataset.logProb}, probability ${Math.exp(Number(span.dataset.logProb)).toFixed(3)}`;
  };
  box.addEventListener("mouseover", event => point(event.target));
  box.addEventListener("click", event => point(event.target));
  box.addEventListener("keydown", event => {
    const by = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!by) return;
    const own = [...box.querySelectorAll(".own")];
    point(own[Math.min(own.length - 1, Math.max(0, own.indexOf(pointed) + by))]);
    event.preventDefault();
  });
  for (const run of stream.runs) {
    if (!run.log_probs.length) { box.append(make("span", {class: "heard", text: run.texts.join("")})); continue; }
    run.texts.forEach((text, position) => {
      const logProb = run.log_probs[position];
      const span = make("span", {class: "own", "data-own": "1", "data-log-prob": logProb, title: `log-prob ${logProb}`, text});
      span.style.setProperty("--surprise", Math.min(0.6, -logProb / 4).toFixed(3));
      box.append(span);
    });
  }
  if (stream.left_out) box.append(make("span", {class: "error", text: ` … ${stream.left_out} more tokens are not shown`}));
  return [line, box];
}

// The seat of a trajectory, with the number of the turn if each turn has a trajectory.
function owner(stream, episode) {
  const seat = episode.seats[stream.seat], own = episode.streams.filter(one => one.seat === stream.seat);
  return own.length > 1 ? `${seat}, turn ${own.indexOf(stream) + 1} of ${own.length}` : seat;
}

function trajectory(stream, seat, use) {
  const own = stream.runs.filter(run => run.log_probs.length).reduce((sum, run) => sum + run.tokens, 0);
  const all = stream.runs.reduce((sum, run) => sum + run.tokens, 0);
  const details = make("details", {}, make("summary", {text: `Trajectory of ${seat}: ${all} tokens, ${own} of them ${use} (underlined; the stronger the colour, the less likely)`}));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(...tokens(stream, seat)); });
  return details;
}

function show(episode) {
  current = episode;
  document.getElementById("said").textContent = `${episode.id}: ${episode.status}, reward ${number(episode.reward)}`;
  const jumps = [["← previous", step(-1)], ["next →", step(1)], ["best", extreme(ORDERS.best)], ["worst", extreme(ORDERS.worst)], ["median", median()], ["illegal", illegal()]];
  const facts = [`reward ${number(episode.reward)}`, ...episode.rewards.map((reward, seat) => `${episode.seats[seat]}: reward ${number(reward)}`), `score ${episode.score} of ${episode.state.best}`, episode.from.label, `state ${episode.state.group}, episode ${episode.episode}`, `${episode.illegal} illegal actions`];
  const views = episode.state.drawing.views, [first, ...others] = views, wide = others.length > 1 || (first && first.columns.length > 4);
  article.replaceChildren(...[
    make("h3", {text: episode.id}),
    make("ul", {class: "chips"}, make("li", {class: statusClass(episode), text: episode.status}), ...facts.map(text => make("li", {text}))),
    make("div", {class: "chips", role: "group", "aria-label": "Go to"}, ...jumps.filter(([, other]) => other).map(([text, other]) => link(other, text))),
    make("h4", {text: "What each player sees, and what they say"}),
    legend(episode),
    make("div", {class: wide ? "episode wide" : "episode"}, ...wide ? [...views.map(view => table(episode, view)), dialogue(episode)] : [...first ? [table(episode, first)] : [], dialogue(episode), ...others.map(other => table(episode, other))]),
    episode.drawing.about_whole ? make("h4", {text: episode.drawing.about_whole}) : null,
    make("div", {class: "table-wide"}, ...episode.state.drawing.whole.map(whole => table(episode, whole)), ...episode.drawing.results.map(result => table(episode, result))),
    make("h4", {text: "All episodes of this state"}), mates(episode),
    make("h4", {text: "Tokens"}), ...episode.streams.length ? episode.streams.map(stream => trajectory(stream, owner(stream, episode), episode.from.kind === "training episodes" ? "trained on" : "sampled")) : [make("p", {class: "faint", text: data.no_tokens})]].filter(Boolean));
  if (at() >= shown) { shown = at() + 1; showList(); } else markCurrent();
}

// Scrolls the list alone, not the page.
function reveal(anchor) {
  const above = anchor.offsetTop - list.offsetTop - list.scrollTop, below = above + anchor.offsetHeight - list.clientHeight;
  if (above < 0) list.scrollTop += above; else if (below > 0) list.scrollTop += below;
}

// --- ways from episode to episode, all within the filter

const at = () => found.indexOf(current);
const step = by => at() < 0 ? found[0] : found[at() + by];
const sorted = order => [...found].sort(order);
const extreme = order => sorted(order)[0];
const median = () => { const all = sorted(ORDERS.worst); return all[Math.floor(all.length / 2)]; };
const illegal = () => [...found.slice(at() + 1), ...found.slice(0, at() + 1)].find(episode => episode.illegal > 0);
const mate = () => { const all = episodes.filter(episode => current && episode.stateNumber === current.stateNumber); return all[(all.indexOf(current) + 1) % all.length]; };
const KEYS = {j: () => step(1), ArrowRight: () => step(1), k: () => step(-1), ArrowLeft: () => step(-1), n: mate, b: () => extreme(ORDERS.best), w: () => extreme(ORDERS.worst), m: median, i: illegal};

document.addEventListener("keydown", event => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !shortcuts.checked) return;
  if (event.target.closest("input:not([type=checkbox]), select, textarea")) return;
  if (event.key.startsWith("Arrow") && !event.target.closest(".reader")) return;
  if (event.key === "/") { event.preventDefault(); form.text.focus(); return; }
  const scrolls = event.key.startsWith("Arrow") && event.target.matches("[tabindex='0']") && event.target.scrollWidth > event.target.clientWidth;
  const episode = KEYS[event.key] && !scrolls && KEYS[event.key]();
  if (episode) { event.preventDefault(); go(episode); article.focus({preventScroll: true}); }
});

function go(episode) {
  show(episode);  // at once: the event that follows comes later than a second key
  location.hash = `#episode-${episode.number}`;
}

function follow() {
  const match = /^#episode-(\d+)$/.exec(location.hash);
  const episode = match && episodes[Number(match[1])];
  if (episode && episode !== current) show(episode);
}

window.addEventListener("hashchange", () => { follow(); if (/^#episode-/.test(location.hash)) article.scrollIntoView({block: "nearest"}); });
form.addEventListener("input", filter);
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", event => event.preventDefault());
document.getElementById("more").addEventListener("click", () => { shown += PAGE; showList(); });
filter();
follow();
if (!current && episodes.length) show(episodes[0]);
