'use strict';
const PAGE = 100;
const PARAMETERS = ['variant', 'shape', 'target', 'format', 'model', 'm'];
const OUTCOMES = { open: 'still open', fixed: 'fixed', held: 'held', lost: 'lost again' };
const state = { key: 'date', down: true, limit: PAGE };

const seriesOf = (step) => data.series[step.series];
const label = (name, value) => (/^[\d.]+$/.test(value) ? `${name}=${value}` : value);
const cell = (series) => Object.entries(series.params).map(([name, value]) => label(name, value)).join(' · ');
const where = (series) => [...new Set([series.machine, series.gpu, ...series.toolchain])].filter(Boolean).join(' · ');
const magnitude = (step) => (step.ratio ? Math.abs(Math.log(step.ratio)) : Infinity);
const commitOf = new Map(data.commits.map((commit) => [commit.hash, commit]));
const age = new Map(data.steps.map((step, index) => [step, -index]));  // the data is newest first
const KEYS = {
  date: (step) => age.get(step),
  metric: (step) => seriesOf(step).benchmark,
  cell: (step) => cell(seriesOf(step)),
  size: magnitude,
  fix: (step) => (step.end_commits === undefined ? null : step.end_commits),
};

function commits(step) {
  const range = step.suspects > 1 ? [commitLink(step.from), '..', el('wbr', {}), commitLink(step.to)] : [commitLink(step.to)];
  return el('td', { 'data-label': 'Commits' }, el('div', {}, range, el('div', { class: 'muted' }, `${commitOf.get(step.to).date.slice(0, 10)}${step.suspects > 1 ? `, ${plural(step.suspects, 'suspect')}` : ''}`)));
}

function spark(step) {
  const [x, y] = step.at;
  return svg('svg', { class: 'spark', viewBox: '0 0 120 24', role: 'img', 'aria-label': `trend, ${step.direction} at ${short(step.to)}` },
    svg('path', { d: seriesOf(step).path }), svg('circle', { class: step.direction, cx: x, cy: y, r: 2.5 }));
}

function outcome(step) {
  if (!step.end) return el('span', { class: step.outcome === 'open' ? 'worse' : '' }, OUTCOMES[step.outcome]);
  const days = step.end_days >= 1 ? `${number(step.end_days)} d` : `${number(step.end_days * 24)} h`;
  return el('div', {}, `${OUTCOMES[step.outcome]} in `, commitLink(step.end), el('div', { class: 'muted' }, `after ${plural(step.end_commits, 'commit')}, ${days}`));
}

/** Shell lines that compare both ends again and, among several suspects, find the culprit. */
function commands(step) {
  const { pattern, gate } = seriesOf(step);
  const find = `asv find ${step.direction === 'better' ? '-i ' : ''}${step.from}..${step.to} ${pattern}`;
  return [...(step.suspects > 1 ? [find] : []), `asv continuous -f 1.0 -b ${pattern} ${step.from} ${step.to}`, `roofgap gate ${step.from} ${step.to} ${gate}`.trim()];
}

function level(step) {
  return el('span', {}, `${number(step.before)} → ${number(step.after)} `, el('span', { class: 'muted unit' }, seriesOf(step).unit));
}

function sign(step, text) {
  return el('span', { class: step.direction }, `${step.direction === 'worse' ? '▲' : '▼'}\u00a0${text}`);
}

function row(step, member) {
  const series = seriesOf(step);
  const tr = el('tr', { class: member ? 'member' : null },
    member ? el('td', {}) : commits(step),
    el('th', { scope: 'row', 'data-label': 'Metric' }, el('a', { class: 'mono', href: series.graph }, breakable(series.benchmark))),
    el('td', { 'data-label': 'Cell' }, el('div', {}, cell(series) || '–', where(series) && el('div', { class: 'muted' }, where(series)))),
    el('td', { class: 'number', 'data-label': 'Level' }, level(step)),
    el('td', { class: 'number', 'data-label': 'Change' }, el('span', {}, sign(step, change(step.ratio)), el('div', { class: 'muted' }, `${step.after < step.before ? '−' : '+'}${number(Math.abs(step.after - step.before))}`))),
    el('td', { 'data-label': 'Outcome' }, outcome(step)),
    el('td', { 'data-label': 'Trend' }, spark(step)),
    el('td', {}, expander('Commands', `Commands for ${series.benchmark} ${cell(series)}`, () => tr, () => [
      el('tr', { class: 'detail' }, el('td', { colspan: 8 }, el('div', { class: 'muted' }, 'Measure it again:'), commands(step).map(command)))])));
  return tr;
}

function groupRow(steps) {
  const [first] = steps;
  const by = sorted(steps, (step) => step.ratio, false);
  const largest = sorted(steps, magnitude, true)[0];
  const alike = (value) => steps.every((step) => value(step) === value(first));
  const counts = Object.keys(OUTCOMES).map((name) => [steps.filter((step) => step.outcome === name).length, OUTCOMES[name]]).filter(([count]) => count);
  const ends = [change(by[0].ratio), change(by[by.length - 1].ratio)];
  const tr = el('tr', {},
    commits(first),
    el('th', { scope: 'row', 'data-label': 'Metric' }, el('a', { class: 'mono', href: `index.html#${seriesOf(first).benchmark}` }, breakable(seriesOf(first).benchmark))),
    el('td', { 'data-label': 'Cell' }, el('div', {}, `${steps.length} cells`, el('div', { class: 'muted' }, summary(steps)))),
    el('td', { class: 'number', 'data-label': 'Level' }, alike((step) => step.before) && alike((step) => step.after) ? level(first) : ''),
    el('td', { class: 'number', 'data-label': 'Change' }, sign(first, ends[0] === ends[1] ? ends[0] : `${ends[0]} … ${ends[1]}`)),
    el('td', { 'data-label': 'Outcome' }, alike((step) => step.outcome + step.end) ? outcome(first) : el('span', {}, counts.map(([count, text]) => `${count} ${text}`).join(', '))),
    el('td', { 'data-label': 'Largest' }, spark(largest)),
    el('td', {}, expander('Cells', `Cells of ${seriesOf(first).benchmark} at ${short(first.to)}`, () => tr, () => steps.map((step) => row(step, true)))));
  return tr;
}

/** What the cells of a group have in common, or how many values there are. */
function summary(steps) {
  const names = Object.keys(seriesOf(steps[0]).params);
  const places = unique(steps.map((step) => where(seriesOf(step))));
  return [...names.map((name) => {
    const values = unique(steps.map((step) => seriesOf(step).params[name]));
    return values.length <= 2 ? values.map((value) => label(name, value)).join(', ') : `${values.length} ${name}s`;
  }), places.length === 1 ? places[0] : `${places.length} machines or toolchains`].filter(Boolean).join(' · ');
}

function matches(step) {
  const series = seriesOf(step);
  const words = chosen('search').toLowerCase().split(/\s+/).filter(Boolean);
  const text = [series.benchmark, cell(series), where(series), step.from, step.to].join(' ').toLowerCase();
  return (!chosen('metric') || series.benchmark === chosen('metric'))
    && (!chosen('direction') || step.direction === chosen('direction'))
    && (!chosen('outcome') || step.outcome === chosen('outcome'))
    && (!chosen('machine') || series.machine === chosen('machine'))
    && (!chosen('gpu') || series.gpu === chosen('gpu'))
    && PARAMETERS.every((name) => !chosen(`p-${name}`) || series.params[name] === chosen(`p-${name}`))
    && (byId('minor').checked || !step.minor)
    && words.every((word) => text.includes(word));
}

function show() {
  const steps = sorted(data.steps.filter(matches), KEYS[state.key], state.down);
  const groups = new Map();
  for (const step of steps) {
    const key = byId('grouped').checked ? [step.from, step.to, seriesOf(step).benchmark, step.direction].join() : groups.size;
    if (groups.has(key)) groups.get(key).push(step); else groups.set(key, [step]);
  }
  const shown = [...groups.values()].slice(0, state.limit);
  const body = el('tbody', {}, shown.map((group) => (group.length > 1 ? groupRow(group) : row(group[0], false))));
  const table = byId('steps');
  table.replaceChildren(table.caption, table.tHead, body);
  table.hidden = !steps.length;
  const worse = steps.filter((step) => step.direction === 'worse').length;
  byId('count').textContent = steps.length ? `${plural(steps.length, 'step')}: ${worse} up, ${steps.length - worse} down` : data.steps.length ? 'No step matches.' : '';
  byId('more').replaceChildren(groups.size > shown.length
    ? el('button', { type: 'button', onclick: () => { state.limit += 5 * PAGE; show(); } }, `Show more (${groups.size - shown.length} left)`) : '');
}

function filters() {
  const changed = () => { state.limit = PAGE; show(); };
  const form = byId('filters');
  const add = (id, label, options, all) => { if (options.length > 1) form.append(select(id, label, options, all, changed)); };
  add('metric', 'Metric', unique(data.series.map((series) => series.benchmark)), 'all metrics');
  for (const name of PARAMETERS) add(`p-${name}`, name === 'm' ? 'M' : name[0].toUpperCase() + name.slice(1), unique(data.series.map((series) => series.params[name])), 'all');
  add('machine', 'Machine', unique(data.series.map((series) => series.machine)), 'all machines');
  add('gpu', 'GPU', unique(data.series.map((series) => series.gpu)), 'all GPUs');
  add('direction', 'Direction', [['worse', 'up (worse)'], ['better', 'down (better)']], 'both');
  add('outcome', 'Outcome', Object.entries(OUTCOMES), 'all');
  form.append(search('search', changed), check('grouped', 'Group the cells of one change', true, changed), check('minor', 'Show steps below the regression threshold', false, changed));
  form.addEventListener('submit', (event) => event.preventDefault());
}

function commitTable() {
  byId('commits').tBodies[0].append(...data.commits.map((commit) => el('tr', { id: `c-${short(commit.hash)}` },
    el('th', { scope: 'row', class: 'mono', 'data-label': 'Commit' }, short(commit.hash)),
    el('td', { class: 'nowrap', 'data-label': 'Date (UTC)' }, commit.date),
    el('td', { 'data-label': 'Measured' }, commit.measured ? 'yes' : 'no'),
    el('td', { 'data-label': 'Subject' }, commit.subject))));
}

/** asv's pages link to commits by shorter or longer hashes. */
function goToCommit() {
  const wanted = location.hash.startsWith('#c-') ? location.hash.slice(3) : '';
  const found = wanted && data.commits.find((commit) => commit.hash.startsWith(wanted));
  document.querySelectorAll('tr.target').forEach((tr) => tr.classList.remove('target'));
  if (!found) return;
  const tr = byId(`c-${short(found.hash)}`);
  tr.classList.add('target');
  tr.scrollIntoView({ block: 'center' });
}

const open = data.steps.filter((step) => step.outcome === 'open' && !step.minor).length;
const hidden = data.steps.filter((step) => step.minor).length;
byId('summary').textContent = data.steps.length
  ? `${plural(data.steps.length, 'step')} in ${data.series.length.toLocaleString('en-US')} of ${data.series_total.toLocaleString('en-US')} series; ${plural(open, 'regression')} still open. ${hidden ? `${plural(hidden, 'step')} below the threshold that asv.conf.json sets for regressions.` : ''}`
  : `No step yet; series measured: ${data.series_total}. A step needs two measured commits that differ: run "asv run" over more commits.`;
filters();
head(byId('steps'), [
  { label: 'Commits', key: 'date' }, { label: 'Metric', key: 'metric' }, { label: 'Cell', key: 'cell' }, { label: 'Level', number: true },
  { label: 'Change', key: 'size', number: true }, { label: 'Outcome', key: 'fix' }, { label: 'Trend' }, { label: 'Reproduce' }], state, show);
show();
commitTable();
addEventListener('DOMContentLoaded', goToCommit);
addEventListener('hashchange', goToCommit);
