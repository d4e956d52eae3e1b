"use strict";
// Text of plays is hostile: it reaches the page through textContent alone.
const data = JSON.parse(document.getElementById("data").textContent);
const plays = data.plays.map((play, number) => ({
  ...play, number, board: data.boards[data.board_of[number]], boardNumber: data.board_of[number], from: data.files[play.file],
  words: [play.id, play.status, ...play.players, ...play.turns.map(turn => turn.text)].join("\n").toLowerCase(),
}));
const shortcuts = document.getElementById("shortcuts");
const form = document.getElementById("filters"), list = document.getElementById("list"), article = document.getElementById("game");
const PAGE = 200;
let found = plays, shown = PAGE, current = null;

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
const link = (play, text, more = {}) => make("a", {href: `#play-${play.number}`, text, ...more});
// Within a run what kind of games; elsewhere which file.
function kindOf(file) { return file.iteration !== null && file.kind ? file.kind : file.label; }
// Titles up to the colon, where these tell the papers apart.
function short(play, paper) {
  const titles = play.board.papers.map(title => title.split(":")[0]);
  return new Set(titles).size === titles.length ? paper.split(":")[0] : paper;
}
const statusClass = play => play.status === "agreed" ? "agreed" : "failed";

// --- filters and list

for (const status of [...new Set(plays.map(play => play.status))].sort()) form.status.append(make("option", {value: status, text: status}));
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
  found = plays.filter(play =>
    (!form.status.value || play.status === form.status.value) && (!form.kind.value || kindOf(play.from) === form.kind.value) &&
    (form.iteration.value === "" || play.from.iteration === Number(form.iteration.value)) &&
    play.reward >= low - 5e-4 && play.reward <= high + 5e-4 && (!form.illegal.checked || play.illegal > 0) &&
    words.every(word => play.words.includes(word)));
  if (ORDERS[form.order.value]) found.sort(ORDERS[form.order.value]);
  shown = PAGE;
  showList();
}

function showList() {
  list.replaceChildren(...found.slice(0, shown).map(play => make("li", {}, link(play, "", {
    "aria-current": play === current ? "true" : null, tabindex: -1,
    "aria-label": `${play.id}, ${play.from.label}, reward ${number(play.reward)}, ${play.status}`,
  }))));
  list.querySelectorAll("a").forEach((anchor, position) => {
    const play = found[position];
    anchor.append(make("b", {class: statusClass(play), text: play.reward.toFixed(2)}),
      make("span", {text: play.turns.length ? play.turns[0].text.slice(0, 120) : "no turns"}),
      make("span", {class: "faint", text: `${play.id} · ${play.from.label}`}));
  });
  document.getElementById("count").textContent = `${found.length} of ${plays.length} games`;
  document.getElementById("more").hidden = shown >= found.length;
  markCurrent();
}

// One entry of the list is in the order of tabs: the open game's, else the first.
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

// --- one game

function board(play, seat) {
  const {papers, reviewers, views, table} = play.board, optimum = play.optimum;
  const seen = seat === null ? table : views[seat];
  const scale = seat === null ? 1 : play.board.scales[seat];
  const known = (r, p) => views.some(view => view[r][p] !== null);
  const head = make("tr", {}, make("td", {class: "hidden"}), ...papers.map(paper => make("th", {scope: "col", title: paper, text: short(play, paper)})));
  const rows = reviewers.map((reviewer, r) => make("tr", {}, make("th", {scope: "row", text: reviewer}), ...papers.map((_, p) => {
    const proposed = play.proposal !== null && play.proposal[p] === r, best = optimum[p] === r;
    const hidden = seat === null ? !known(r, p) : seen[r][p] === null;
    const text = !known(r, p) ? (seat === null ? String(table[r][p]) : "·") : seat === null || !hidden ? String(seen[r][p]) : String(Math.floor(table[r][p] * scale));
    const words = [hidden ? (known(r, p) ? "hidden from this player" : "seen by nobody") : "", proposed ? "proposed" : "", best ? "optimum" : ""];
    return make("td", {class: [hidden && "hidden", proposed && "proposed", best && "best"].filter(Boolean).join(" ") || null, title: words.filter(Boolean).join(", ") || null, text},
      make("span", {class: "sr", text: words.filter(Boolean).join(", ")}));
  })));
  const caption = seat === null ? "Both together: true scores" : `Player ${seat} (${play.players[seat]}) sees` + (scale === 1 ? "" : `, scores × ${scale.toFixed(2)}`);
  return make("div", {class: "board", tabindex: 0, role: "region", "aria-label": caption},
    make("table", {}, make("caption", {text: caption}), make("thead", {}, head), make("tbody", {}, ...rows)));
}

function gains(play) {
  const {papers, reviewers, table} = play.board, optimum = play.optimum;
  const signed = value => value > 0 ? `+${value}` : value < 0 ? `−${-value}` : "0";
  const tone = value => value < 0 ? "loss" : value > 0 ? "gain" : null;
  let mine = 0, most = 0;
  const rows = papers.map((paper, p) => {
    const chosen = play.proposal[p], best = optimum[p], gain = table[chosen][p] - table[best][p];
    mine += table[chosen][p]; most += table[best][p];
    return make("tr", {}, make("th", {scope: "row", title: paper, text: short(play, paper)}),
      make("td", {text: `${reviewers[chosen]} ${table[chosen][p]}`}), make("td", {text: `${reviewers[best]} ${table[best][p]}`}), make("td", {class: tone(gain), text: signed(gain)}));
  });
  rows.push(make("tr", {}, make("th", {scope: "row", text: "together"}), make("td", {text: mine}), make("td", {text: most}), make("td", {class: tone(mine - most), text: signed(mine - most)})));
  const head = ["paper", play.agreed ? "agreed" : "last proposal, not agreed", "an optimum", "gain"].map(text => make("th", {scope: "col", text}));
  return make("div", {class: "board", tabindex: 0, role: "region", "aria-label": "Gains and losses"}, make("table", {},
    make("caption", {text: "Gain and loss, paper by paper"}), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
}

function dialogue(play) {
  const turns = play.turns.map(turn => make("li", {class: `p${turn.player}`},
    make("div", {class: "who", text: `Player ${turn.player} · ${turn.action}${turn.cut ? " · cut at the token limit" : ""}`}),
    make("div", {class: "text", dir: "auto", text: turn.text}), turn.error ? make("div", {class: "error", text: `illegal: ${turn.error}`}) : null));
  return make("div", {class: "talk"}, make("ol", {class: "dialogue", "aria-label": "Dialogue"}, ...turns.length ? turns : [make("li", {text: "Nobody said anything."})]));
}

function mates(play) {
  const all = plays.filter(other => other.boardNumber === play.boardNumber);
  const rows = all.map(other => make("tr", {}, make("th", {scope: "row"}, link(other, `play ${other.play}`, {"aria-current": other === play ? "true" : null})),
    make("td", {text: number(other.reward)}), make("td", {class: statusClass(other), text: other.status}), make("td", {text: other.turns.length}), make("td", {text: other.illegal}),
    make("td", {class: "prose", text: other.proposal === null ? "–" : other.board.papers.map((paper, p) => `${short(other, paper)} → ${other.board.reviewers[other.proposal[p]]}`).join(", ")})));
  const head = ["play", "reward", "status", "turns", "illegal", "proposal"].map(text => make("th", {scope: "col", text}));
  return make("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": "Plays of this state"}, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
}

function tokens(stream) {
  const line = make("p", {class: "faint", role: "status", text: "Point at a sampled token for its log-prob, or go through them with the arrow keys."});
  const box = make("div", {class: "tokens", tabindex: 0, role: "region", "aria-label": `Tokens of player ${stream.player}`});
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

function trajectory(stream, use) {
  const own = stream.runs.filter(run => run.log_probs.length).reduce((sum, run) => sum + run.tokens, 0);
  const all = stream.runs.reduce((sum, run) => sum + run.tokens, 0);
  const details = make("details", {}, make("summary", {text: `Trajectory of player ${stream.player}: ${all} tokens, ${own} of them ${use} (underlined; the stronger the colour, the less likely)`}));
  details.addEventListener("toggle", () => { if (details.open && details.children.length === 1) details.append(...tokens(stream)); });
  return details;
}

function show(play) {
  current = play;
  document.getElementById("said").textContent = `${play.id}: ${play.status}, reward ${number(play.reward)}`;
  const jumps = [["← previous", step(-1)], ["next →", step(1)], ["best", extreme(ORDERS.best)], ["worst", extreme(ORDERS.worst)], ["median", median()], ["illegal", illegal()]];
  const facts = [`reward ${number(play.reward)}`, `score ${play.score} of ${play.board.best}`, play.from.label, `state ${play.board.group}, play ${play.play}`, `${play.illegal} illegal actions`];
  article.replaceChildren(
    make("h3", {text: play.id}),
    make("ul", {class: "chips"}, make("li", {class: statusClass(play), text: play.status}), ...facts.map(text => make("li", {text}))),
    make("div", {class: "chips", role: "group", "aria-label": "Go to"}, ...jumps.filter(([, other]) => other).map(([text, other]) => link(other, text))),
    make("h4", {text: "What each player sees, and what they say"}),
    make("p", {class: "faint"}, make("span", {class: "mark", text: "proposed"}), " ", make("span", {class: "mark best", text: "optimum"}), " ", make("span", {class: "mark both", text: "both"}), " In italics: hidden from that player."),
    make("div", {class: play.board.papers.length > 4 ? "play wide" : "play"}, board(play, 0), dialogue(play), board(play, 1)),
    make("h4", {text: play.proposal === null ? "The whole table (nothing was proposed)" : "The proposal beside an optimum"}),
    make("div", {class: "table-wide"}, board(play, null), play.proposal === null ? null : gains(play)),
    make("h4", {text: "All plays of this state"}), mates(play),
    make("h4", {text: "Tokens"}), ...play.streams.length ? play.streams.map(stream => trajectory(stream, play.from.kind === "training games" ? "trained on" : "sampled")) : [make("p", {class: "faint", text: data.no_tokens})]);
  if (at() >= shown) { shown = at() + 1; showList(); } else markCurrent();
}

// Scrolls the list alone, not the page.
function reveal(anchor) {
  const above = anchor.offsetTop - list.offsetTop - list.scrollTop, below = above + anchor.offsetHeight - list.clientHeight;
  if (above < 0) list.scrollTop += above; else if (below > 0) list.scrollTop += below;
}

// --- ways from game to game, all within the filter

// A play that the engine lost is neither good nor bad.
const at = () => found.indexOf(current);
const step = by => at() < 0 ? found[0] : found[at() + by];
const sorted = order => found.filter(play => play.status !== "engine_failure").sort(order);
const extreme = order => sorted(order)[0];
const median = () => { const all = sorted(ORDERS.worst); return all[Math.floor(all.length / 2)]; };
const illegal = () => [...found.slice(at() + 1), ...found.slice(0, at() + 1)].find(play => play.illegal > 0);
const mate = () => { const all = plays.filter(play => current && play.boardNumber === current.boardNumber); return all[(all.indexOf(current) + 1) % all.length]; };
const KEYS = {j: () => step(1), ArrowRight: () => step(1), k: () => step(-1), ArrowLeft: () => step(-1), n: mate, b: () => extreme(ORDERS.best), w: () => extreme(ORDERS.worst), m: median, i: illegal};

document.addEventListener("keydown", event => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !shortcuts.checked) return;
  if (event.target.closest("input:not([type=checkbox]), select, textarea")) return;
  if (event.key.startsWith("Arrow") && !event.target.closest(".reader")) return;
  if (event.key === "/") { event.preventDefault(); form.text.focus(); return; }
  const scrolls = event.key.startsWith("Arrow") && event.target.matches("[tabindex='0']") && event.target.scrollWidth > event.target.clientWidth;
  const play = KEYS[event.key] && !scrolls && KEYS[event.key]();
  if (play) { event.preventDefault(); go(play); article.focus({preventScroll: true}); }
});

function go(play) {
  show(play);  // at once: the event that follows comes later than a second key
  location.hash = `#play-${play.number}`;
}

function follow() {
  const match = /^#play-(\d+)$/.exec(location.hash);
  const play = match && plays[Number(match[1])];
  if (play && play !== current) show(play);
}

window.addEventListener("hashchange", () => { follow(); if (/^#play-/.test(location.hash)) article.scrollIntoView({block: "nearest"}); });
form.addEventListener("input", filter);
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", event => event.preventDefault());
document.getElementById("more").addEventListener("click", () => { shown += PAGE; showList(); });
filter();
follow();
if (!current && plays.length) show(plays[0]);
