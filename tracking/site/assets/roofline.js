'use strict';
const GAPS = { attainable_gap: 'attainable gap', roof_gap: 'roof gap' };
const PEERS = ['torch', 'tinygemm', 'bnb-nf4', 'gemlite', 'marlin'];
const MARKS = ['M0-5 5 4H-5Z', 'M-4.5-4.5H4.5V4.5H-4.5Z', 'M0-5.5 5.5 0 0 5.5-5.5 0Z', 'M0 5-5-4H5Z', 'M-5-1.6H-1.6V-5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5Z', 'M-4.5 0A4.5 4.5 0 1 1 4.5 0 4.5 4.5 0 1 1-4.5 0Z', 'M-5 5V-5L5 5Z', 'M-5-5H5L-5 5Z'];
const TICKS = [0.5, 0.7, 0.9, 1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 2.5, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000];
const state = { key: 'shape', down: false, hidden: new Set() };

const chosenGpu = () => data.gpus.find((one) => one.gpu === chosen('gpu')) || data.gpus[0];

const isPeer = (variant) => PEERS.includes(variant);

/** Peers are hollow: shape and fill tell variants apart without colour. */
function mark(variant, variants) {
  const index = variants.filter((other) => isPeer(other) === isPeer(variant)).indexOf(variant) % MARKS.length;
  const colour = `var(--s${index})`;
  return svg('path', { d: MARKS[index], fill: isPeer(variant) ? 'none' : colour, stroke: colour, 'stroke-width': 1.5 });
}

function legend(variants) {
  return el('div', { class: 'legend', role: 'group', 'aria-label': 'Variants shown' }, variants.map((variant) => el('button', {
    type: 'button', 'aria-pressed': String(!state.hidden.has(variant)), onclick: () => {
      if (!state.hidden.delete(variant)) state.hidden.add(variant);
      show(variant);
    }, 'data-variant': variant }, svg('svg', { viewBox: '-7 -7 14 14', 'aria-hidden': 'true' }, mark(variant, variants)), variant)));
}

/** One line per shape, gap to the right on a logarithmic axis. The table below holds the same numbers. */
function chart(rows, variants, gap) {
  const drawn = rows.filter((row) => row[gap] && !state.hidden.has(row.variant));
  if (!drawn.length) return el('p', { class: 'empty' }, `No ${GAPS[gap]} in these results.`);
  const low = Math.min(1, ...drawn.map((row) => row[gap])), high = Math.max(1.3, ...drawn.map((row) => row[gap]));
  const place = (value) => `${(2 + 96 * Math.log(value / low) / Math.log(high / low)).toFixed(2)}%`;
  const ticks = thin(TICKS.filter((tick) => tick >= low && tick <= high), low, high);
  const grid = (height) => ticks.map((tick) => svg('line', { class: tick === 1 ? 'roof' : null, x1: place(tick), x2: place(tick), y1: 0, y2: height }));
  const shapes = [...new Set(sorted(drawn, (row) => row.weights, false).map((row) => row.shape))];
  const lines = shapes.map((shape) => [
    el('span', {}, shape),
    svg('svg', { 'aria-hidden': 'true' }, grid(22), drawn.filter((row) => row.shape === shape).map((row) => svg('svg', { x: place(row[gap]), y: 11, overflow: 'visible' },
      mark(row.variant, variants), svg('title', {}, `${row.variant} ${shape}: ${number(row[gap])}`))))]);
  const axis = [el('span', { class: 'axis' }), svg('svg', { class: 'axis', 'aria-hidden': 'true' }, ticks.map((tick) => svg('text', { x: place(tick), y: 14 }, String(tick))))];
  return el('figure', {}, el('figcaption', { class: 'muted' }, `${GAPS[gap]}, logarithmic; dashed: the roof`), el('div', { class: 'plot' }, el('div', { class: 'dots' }, lines, axis)));
}

/** Ticks far enough apart for their labels on a phone; 1 stays. */
function thin(ticks, low, high) {
  const apart = Math.log(high / low) / 9;
  const kept = ticks.includes(1) ? [1] : [];
  for (const tick of ticks) if (kept.every((one) => Math.abs(Math.log(tick / one)) >= apart)) kept.push(tick);
  return kept;
}

const COLUMNS = [
  { label: 'Shape (N x K)', key: 'shape' }, { label: 'Variant', key: 'variant' }, { label: 'Latency, us', key: 'latency_us', number: true },
  { label: 'Attainable gap', key: 'attainable_gap', number: true }, { label: 'Roof gap', key: 'roof_gap', number: true },
  { label: 'Relative error', key: 'rel_error', number: true }, { label: 'Status', key: 'status' }, { label: 'From', key: 'source' }];

function kernelTable(rows) {
  const table = el('table', { class: 'cards dense', id: 'kernels' }, el('caption', {}, 'Every result, failed ones included'), el('thead', {}));
  const draw = () => {
    const body = el('tbody', {}, sorted(rows, (row) => (state.key === 'shape' ? row.weights : row[state.key]), state.down).map((row) => el('tr', {},
      el('th', { scope: 'row', class: 'mono', 'data-label': 'Shape' }, row.shape),
      el('td', { 'data-label': 'Variant' }, row.variant),
      ...['latency_us', 'attainable_gap', 'roof_gap', 'rel_error'].map((name, index) => el('td', { class: 'number', 'data-label': COLUMNS[index + 2].label }, number(row[name]))),
      el('td', { class: row.status === 'ok' ? '' : 'warn', 'data-label': 'Status' }, row.status),
      el('td', { class: 'muted', 'data-label': 'From' }, row.source))));
    table.replaceChildren(table.caption, table.tHead, body);
  };
  head(table, COLUMNS, state, draw);
  draw();
  return table;
}

function decodeTable(rows) {
  const columns = [['tok_s', 'Tokens/s'], ['ms_per_token', 'ms per token'], ['read_gbps', 'Read, GB/s'], ['pct_of_read_bandwidth', '% of read bandwidth']];
  return [el('h2', {}, 'Decoding'), el('table', { class: 'cards dense', id: 'decode' }, el('caption', {}, 'Whole-model decoding, from results/e2e'),
    el('thead', {}, el('tr', {}, ['Model', 'Arm', 'Depth'].map((name) => el('th', { scope: 'col' }, name)), columns.map(([, name]) => el('th', { scope: 'col', class: 'number' }, name)), el('th', { scope: 'col' }, 'Status'))),
    el('tbody', {}, rows.map((row) => el('tr', {}, el('th', { scope: 'row', 'data-label': 'Model' }, row.model), el('td', { 'data-label': 'Arm' }, row.arm),
      el('td', { 'data-label': 'Depth' }, number(row.depth)), columns.map(([key, name]) => el('td', { class: 'number', 'data-label': name }, number(row[key]))),
      el('td', { class: row.status === 'ok' ? '' : 'warn', 'data-label': 'Status' }, row.status)))))];
}

function files(list) {
  return [el('h2', {}, 'Where this comes from'), list.map((file) => el('details', {}, el('summary', { class: 'mono' }, file.path), facts([
    ['date', file.date], ['commit', file.commit && file.commit.slice(0, 16)], ['command', el('code', {}, file.command)],
    ...Object.entries(file.versions)])))];
}

function show(focus) {
  const gpu = chosenGpu();
  const rows = gpu.kernels.filter((row) => !chosen('m') || String(row.m) === chosen('m'));
  const variants = sorted(unique(gpu.kernels.map((row) => row.variant)), (variant) => Number(isPeer(variant)), false);
  byId('content').replaceChildren(...[
    rows.length ? [legend(variants), chart(rows, variants, chosen('gap')), kernelTable(rows.filter((row) => !state.hidden.has(row.variant)))] : [],
    gpu.decode.length ? decodeTable(gpu.decode) : [], gpu.files.length ? files(gpu.files) : []].flat(2));
  if (focus) document.querySelector(`[data-variant="${CSS.escape(focus)}"]`).focus();
}

/** M belongs to the GPU that is chosen. */
function filters() {
  const gpu = chosenGpu();
  const kept = chosen('gap');
  const ms = unique(gpu.kernels.map((row) => row.m));
  byId('filters').replaceChildren(
    select('gpu', 'GPU', data.gpus.map((one) => one.gpu), null, () => { filters(); show(); }),
    select('m', 'M (tokens)', ms, null, () => show()),
    select('gap', 'Gap', Object.entries(GAPS), null, () => show()));
  byId('gpu').value = gpu.gpu;
  if (kept) byId('gap').value = kept;
}

notices(data.problems);
byId('filters').addEventListener('submit', (event) => event.preventDefault());
if (data.gpus.length) {
  filters();
  show();
} else {
  byId('content').append(el('div', { class: 'empty' }, el('strong', {}, 'No GPU results yet. '),
    'This page reads results/compare/<gpu>.json, results/e2e/<gpu>/<model>.json and the device lane of the suite. On a machine with a GPU, ',
    el('code', {}, 'roofgap bench --help'), ' says how to write them; commit the file and publish again.'));
}
