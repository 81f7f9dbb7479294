'use strict';
const state = { key: 'problem', down: false };
const last = (winner) => winner.history.filter((entry) => entry.config).at(-1);
const retunes = (winner) => winner.history.filter((entry) => entry.event === 'retuned').length;
const KEYS = {
  gpu: (winner) => winner.gpu, variant: (winner) => winner.variant, problem: (winner) => winner.problem,
  latency: (winner) => last(winner).latency_us, retunes, ties: (winner) => (winner.current ? winner.current.ties : null),
};

const configText = (config) => Object.entries(config).map(([name, value]) => `${name}=${value}`).join(' ');

function stand(winner) {
  if (!winner.current) return el('span', { class: 'tag warn' }, winner.history.at(-1).event);
  const reasons = winner.current.unvalidated;
  return reasons.length ? el('span', { class: 'tag warn', title: reasons.join('; ') }, 'unvalidated') : el('span', { class: 'tag better' }, 'validated');
}

function delta(entry) {
  if (entry.over_previous) return `${change(1 / entry.over_previous)} against the old winner`;
  if (entry.over_default) return `${change(1 / entry.over_default)} against the default`;
  return '–';
}

const COLUMNS = ['Commit', 'Event', 'Latency, us (p20–p80)', 'Time, side by side', 'Changed'];

function changes(entry) {
  if (entry.event === 'first') return configText(entry.config);
  return entry.changed.length ? el('div', {}, entry.changed.map((one) => el('div', {}, `${one.field}: ${one.from ?? '–'} → ${one.to ?? '–'}`))) : '–';
}

function historyRow(entry) {
  const cells = [
    entry.event,
    entry.config ? `${number(entry.latency_us)} (${number(entry.p20_us)}–${number(entry.p80_us)})` : '–',
    entry.config ? delta(entry) : '–',
    entry.config ? changes(entry) : '–'];
  return el('tr', {},
    el('th', { scope: 'row', 'data-label': COLUMNS[0] }, el('div', {}, el('span', { class: 'mono' }, short(entry.commit)), el('div', { class: 'muted' }, `${entry.date.slice(0, 10)} ${entry.subject}`))),
    cells.map((text, index) => el('td', { class: index === 3 ? 'mono' : null, 'data-label': COLUMNS[index + 1] }, text)));
}

function historyTable(winner) {
  return el('table', { class: 'cards' }, el('caption', {}, 'Newest first'),
    el('thead', {}, el('tr', {}, COLUMNS.map((name) => el('th', { scope: 'col' }, name)))),
    el('tbody', {}, [...winner.history].reverse().map(historyRow)));
}

function provenance(winner) {
  if (!winner.current) return [];
  const { provenance: from, ...now } = winner.current;
  const rejected = Object.entries(now.rejected).map(([status, count]) => `${count} ${status}`).join(', ');
  return facts([
    ['file', el('code', {}, winner.path)],
    ['unvalidated', now.unvalidated.length ? el('span', { class: 'warn' }, now.unvalidated.join('; ')) : ''],
    ['tuned', `${from.date}, ${from.strategy}, ${plural(from.trials, 'trial')}, seed ${from.seed}, run ${from.run}`],
    ['toolchain', Object.entries(from.toolchain).map(([name, version]) => `${name} ${version}`).join(', ')],
    ['policy', winner.policy], ['tie set', `${now.ties} within ${number(now.tie_band * 100)} %`], ['relative error', now.rel_error === null ? '' : number(now.rel_error)],
    ['rejected', rejected], ['kernel source', el('code', {}, from.source_hash)], ['search space', el('code', {}, from.space_hash)]]);
}

function row(winner) {
  const entry = last(winner);
  const tr = el('tr', {},
    el('td', { 'data-label': 'GPU' }, winner.gpu), el('td', { 'data-label': 'Variant' }, winner.variant),
    el('th', { scope: 'row', class: 'mono', 'data-label': 'Problem' }, winner.problem),
    el('td', { class: 'number', 'data-label': 'Latency, us' }, number(entry.latency_us)),
    el('td', { class: 'mono', 'data-label': 'Config' }, el('span', {}, configText(entry.config))),
    el('td', { class: 'number', 'data-label': 'Ties' }, winner.current ? String(winner.current.ties) : '–'),
    el('td', { class: 'number', 'data-label': 'Retunes' }, String(retunes(winner))),
    el('td', { 'data-label': 'State' }, stand(winner)),
    el('td', {}, expander('History', `History of ${winner.variant} ${winner.problem} on ${winner.gpu}`, () => tr, () => [
      el('tr', { class: 'detail' }, el('td', { colspan: 9 }, provenance(winner), historyTable(winner)))])));
  return tr;
}

function show() {
  const words = chosen('search').toLowerCase().split(/\s+/).filter(Boolean);
  const rows = data.winners.filter((winner) => (!chosen('gpu') || winner.gpu === chosen('gpu')) && (!chosen('variant') || winner.variant === chosen('variant'))
    && (!byId('doubtful').checked || !winner.current || winner.current.unvalidated.length)
    && words.every((word) => `${winner.gpu} ${winner.variant} ${winner.problem} ${configText(last(winner).config)}`.toLowerCase().includes(word)));
  const table = byId('winners');
  table.replaceChildren(table.caption, table.tHead, el('tbody', {}, sorted(rows, KEYS[state.key], state.down).map(row)));
  byId('count').textContent = `${plural(rows.length, 'winner')}, ${plural(rows.reduce((sum, winner) => sum + retunes(winner), 0), 'retune')}`;
}

notices(data.problems);
if (data.winners.length) {
  byId('filters').append(...[
    select('gpu', 'GPU', unique(data.winners.map((winner) => winner.gpu)), 'all GPUs', show),
    select('variant', 'Variant', unique(data.winners.map((winner) => winner.variant)), 'all variants', show),
    search('search', show), check('doubtful', 'Only unvalidated', false, show)]);
  byId('filters').addEventListener('submit', (event) => event.preventDefault());
  head(byId('winners'), [
    { label: 'GPU', key: 'gpu' }, { label: 'Variant', key: 'variant' }, { label: 'Problem', key: 'problem' }, { label: 'Latency, us', key: 'latency', number: true },
    { label: 'Config' }, { label: 'Ties', key: 'ties', number: true }, { label: 'Retunes', key: 'retunes', number: true }, { label: 'State' }, { label: 'Details' }], state, show);
  show();
} else {
  byId('winners').replaceWith(el('div', { class: 'empty' }, el('strong', {}, 'No winner is committed yet. '), 'On a machine with a GPU, ',
    el('code', {}, 'roofgap tune --help'), ' says how to tune a set of shapes; commit tuning/winners and publish again.'));
}
