'use strict';
/* Shared by our pages: the embedded data, elements, numbers, filters, sortable tables. */
const data = JSON.parse(document.getElementById('data').textContent);
addEventListener('DOMContentLoaded', () => document.documentElement.classList.add('ready'));  // the page's script has run
const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ''));
  return node;
}
const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

/** Four significant digits, thousands separated, a dash for what is absent. */
function number(value) {
  if (value === null || value === undefined) return '–';
  return Number(value.toPrecision(4)).toLocaleString('en-US', { maximumFractionDigits: 6, maximumSignificantDigits: Number.isInteger(value) ? 21 : 4 });
}

function plural(count, noun) {
  return `${count.toLocaleString('en-US')} ${noun}${count === 1 ? '' : 's'}`;
}

/** A ratio as signed percent; from 3 on as a factor. */
function change(ratio) {
  if (ratio === null || ratio === undefined) return 'from 0';
  if (ratio >= 3) return `× ${number(ratio)}`;
  const percent = (ratio - 1) * 100;
  const digits = Math.abs(percent) < 10 ? 1 : 0;
  return `${percent < 0 ? '−' : '+'}${Math.abs(percent).toFixed(digits)}\u00a0%`;
}

const unique = (values) => [...new Set(values)].filter((value) => value !== undefined && value !== '')
  .sort((a, b) => String(a).localeCompare(String(b), 'en', { numeric: true }));

/** A labelled select; `all` adds an entry that stands for no choice. */
function select(id, label, options, all, changed) {
  const entries = (all ? [['', all]] : []).concat(options.map((option) => Array.isArray(option) ? option : [option, option]));
  return el('label', {}, label, el('select', { id, name: id, onchange: changed }, entries.map(([value, text]) => el('option', { value }, String(text)))));
}
const search = (id, changed) => el('label', {}, 'Search', el('input', { id, type: 'search', autocomplete: 'off', oninput: changed }));
const check = (id, label, checked, changed) => el('label', { class: 'check' }, el('input', { id, type: 'checkbox', checked: checked ? '' : null, onchange: changed }), label);
const chosen = (id) => (byId(id) ? byId(id).value : '');

/** Head of a sortable table. `columns`: {label, key, number}; without a key a column does not sort. */
function head(table, columns, state, changed) {
  const sorters = columns.map((column) => {
    const th = el('th', { scope: 'col', class: column.number ? 'number' : null });
    if (!column.key) { th.append(column.label); return [th, column]; }
    th.append(el('button', { type: 'button', onclick: () => {
      state.down = state.key === column.key ? !state.down : Boolean(column.number);
      state.key = column.key;
      mark();
      changed();
    } }, column.label));
    return [th, column];
  });
  function mark() {
    for (const [th, column] of sorters) {
      if (column.key && column.key === state.key) th.setAttribute('aria-sort', state.down ? 'descending' : 'ascending');
      else th.removeAttribute('aria-sort');
    }
  }
  table.tHead.replaceChildren(el('tr', {}, sorters.map(([th]) => th)));
  mark();
}

/** Sorted copy; absent values come last either way, ties keep their order. */
function sorted(rows, key, down) {
  const value = (row) => { const found = key(row); return found === undefined ? null : found; };
  return rows.map((row, index) => [value(row), index, row]).sort(([a, i], [b, j]) => {
    if (a === null || b === null) return (a === null) - (b === null) || i - j;
    const order = typeof a === 'number' && typeof b === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true });
    return (down ? -order : order) || i - j;
  }).map(([, , row]) => row);
}

/** A button that shows and hides rows made on first use; they are inserted after `row()`. */
function expander(label, name, row, make) {
  let rows = null;
  const button = el('button', { type: 'button', 'aria-expanded': 'false', 'aria-label': name, onclick: () => {
    const open = button.getAttribute('aria-expanded') === 'true';
    if (!rows) { rows = make(); row().after(...rows); }
    for (const one of rows) one.hidden = open;
    button.setAttribute('aria-expanded', String(!open));
  } }, label);
  return button;
}

function command(text) {
  const button = el('button', { type: 'button', onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = 'Copied'; }
    catch { getSelection().selectAllChildren(code); button.textContent = 'Selected'; }
  } }, 'Copy');
  const code = el('code', {}, text);
  return el('div', { class: 'command' }, code, button);
}

const facts = (entries) => el('dl', { class: 'facts' }, entries.filter(([, value]) => value !== null && value !== undefined && value !== '')
  .map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]));

function notices(problems) {
  byId('problems').replaceChildren(...problems.map((text) => el('p', { class: 'notice' }, text)));
}

/** A dotted name that may break where its parts join. */
const breakable = (name) => name.split(/(?<=[._])/).flatMap((part) => [part, el('wbr', {})]);
const short = (hash) => hash.slice(0, 10);
const commitLink = (hash) => el('a', { class: 'mono nowrap', href: `history.html#c-${short(hash)}` }, short(hash));
