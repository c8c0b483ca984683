// Parts that several views share: chips, tables, dialogs, toasts, copying, empty states.

import { h, replace } from './dom.js';
import { pretty } from './text.js';
import { ApiError } from './api.js';
import { link } from './place.js';

// One hue, one sign and one word for each state.
const SIGNS = {
  WAITING: '◷', SCHEDULED: '◔', READY: '●', RUNNING: '▶', COMPLETED: '✓', FAILED: '✕', CANCELLED: '⊘', SKIPPED: '⇥', PAUSED: '‖',
};

export function sign(state) { return SIGNS[state] ?? '•'; }

export function chip(state, text = state) {
  return h('span', { class: `chip s-${String(state).toLowerCase()}` }, h('span', { 'aria-hidden': 'true' }, sign(state)), ' ', text);
}

// How many are in each state, as one bar.
const SHARE_ORDER = ['completed', 'running', 'ready', 'scheduled', 'waiting', 'skipped', 'cancelled', 'failed'];

export function share(counts = {}) {
  const shown = SHARE_ORDER.filter((name) => counts[name]);
  const all = shown.reduce((sum, name) => sum + counts[name], 0);
  const said = shown.map((name) => `${counts[name]} ${name}`).join(', ') || 'none';
  return h('span', { class: 'share', title: said, role: 'img', 'aria-label': said },
    ...shown.map((name) => h('span', { class: `part s-${name}`, style: { width: `${(100 * counts[name]) / all}%` } })));
}

// What is wrong with a text that should be JSON; null if nothing.
export function isJson(text) { try { JSON.parse(text); return null; } catch (error) { return error.message; } }

export function panel(title, ...children) {
  return h('section', { class: 'panel', 'aria-label': title }, h('h2', {}, title), ...children);
}

export function figure(label, value, { href, hint, tone } = {}) {
  const inner = [h('span', { class: 'label' }, label), h('span', { class: tone ? `value tone-${tone}` : 'value' }, value), hint && h('span', { class: 'hint' }, hint)];
  return href ? h('a', { class: 'figure', href }, ...inner) : h('div', { class: 'figure' }, ...inner);
}

export function table(caption, columns, rows, { empty, rowKey, rowLink, onSelect, selected } = {}) {
  if (!rows.length) return empty ?? emptyState('Nothing here.');
  const head = columns.map((column) => h('th', { scope: 'col', class: column.align === 'right' ? 'right' : null }, column.title));
  if (onSelect) {
    const all = h('input', { type: 'checkbox', 'aria-label': 'Select all on this page', onchange: (event) => onSelect(event.target.checked ? rows.map(rowKey) : []) });
    all.checked = rows.length > 0 && rows.every((row) => selected.has(rowKey(row)));
    head.unshift(h('th', { scope: 'col', class: 'check' }, all));
  }
  const body = rows.map((row) => {
    const key = rowKey?.(row);
    const cells = columns.map((column) => h('td', { class: [column.align === 'right' && 'right', column.className].filter(Boolean).join(' ') || null, 'data-title': column.title }, column.cell(row)));
    if (onSelect) {
      const box = h('input', { type: 'checkbox', 'aria-label': `Select ${key}`, 'data-part': 'check', onchange: () => {
        const next = new Set(selected);
        if (box.checked) next.add(key); else next.delete(key);
        onSelect([...next]);
      } });
      box.checked = selected.has(key);
      cells.unshift(h('td', { class: 'check' }, box));
    }
    return h('tr', { 'data-key': key, 'data-href': rowLink?.(row), tabindex: key ? '-1' : null, class: selected?.has(key) ? 'selected' : null }, ...cells);
  });
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': caption },
    h('table', {}, h('caption', { class: 'unseen' }, caption), h('thead', {}, h('tr', {}, ...head)), h('tbody', {}, ...body)));
}

export function emptyState(text, command = null) {
  return h('div', { class: 'empty' }, h('p', {}, text), command && commandLine(command));
}

export function commandLine(command) {
  return h('div', { class: 'command' }, h('code', {}, command), copyButton(command));
}

export function copyButton(text, label = 'Copy') {
  const button = h('button', { type: 'button', class: 'small', onclick: async () => {
    await copy(text);
    replace(button, 'Copied');
    setTimeout(() => replace(button, label), 1500);
  } }, label);
  return button;
}

// The clipboard of the browser needs HTTPS; a selected text field works over plain HTTP, too.
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = h('textarea', { class: 'unseen', value: text, 'aria-hidden': 'true' });
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
  }
}

export function jsonBlock(value, label = 'JSON') {
  const text = pretty(value);
  return h('div', { class: 'json' }, copyButton(text), h('pre', { tabindex: '0', 'aria-label': label }, text));
}

export function idLink(view, id, text = null) {
  return h('a', { href: link(view, id), class: 'mono', title: id }, text ?? id);
}

export function toast(text, tone = 'good') {
  const note = h('p', { class: `toast tone-${tone}` }, text);
  document.getElementById('toasts').append(note);
  setTimeout(() => note.remove(), 6000);
}

export function problem(error) {
  const detail = error instanceof ApiError ? error.message : String(error);
  return h('div', { class: 'problem', role: 'alert' }, h('strong', {}, 'This could not be read. '), detail);
}

export function skeleton(rows = 8) {
  return h('div', { class: 'skeleton', 'aria-busy': 'true', 'aria-label': 'Loading' }, ...Array.from({ length: rows }, () => h('div', {})));
}

// Asks before what cannot be undone; answers what the form holds, or null.
export function ask({ title, text, detail, confirm = 'Do it', danger = false, fields = [] }) {
  return new Promise((resolve) => {
    const inputs = fields.map((field) => {
      const input = field.kind === 'text' ? h('textarea', { name: field.name, rows: field.rows ?? 8, spellcheck: 'false', value: field.value ?? '' })
        : h('input', { name: field.name, type: field.kind ?? 'text', value: field.value ?? '', required: field.required, min: field.min, max: field.max, step: field.step, pattern: field.pattern, maxlength: field.most });
      return [field, input, h('label', {}, field.label, input)];
    });
    const failed = h('p', { class: 'tone-bad', role: 'alert' });
    const dialog = h('dialog', { 'aria-label': title, onclose: () => { dialog.remove(); resolve(dialog.returnValue === 'yes' ? values() : null); } },
      h('form', { method: 'dialog' }, h('h2', {}, title), text && h('p', {}, text), detail, ...inputs.map(([, , label]) => label), failed,
        h('div', { class: 'buttons' },
          h('button', { type: 'button', onclick: () => dialog.close('no') }, 'Cancel'),
          h('button', { type: 'submit', value: 'yes', class: danger ? 'danger' : 'primary' }, confirm))));
    const values = () => Object.fromEntries(inputs.map(([field, input]) => [field.name, input.value]));
    dialog.querySelector('form').addEventListener('submit', (event) => {
      for (const [field, input] of inputs) {
        const wrong = field.check?.(input.value);
        if (wrong) { event.preventDefault(); replace(failed, wrong); input.focus(); return; }
      }
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// A button that does one thing, says how it went, and cannot be pressed twice meanwhile.
export function action(label, work, { danger = false, done, title, className = '' } = {}) {
  const button = h('button', { type: 'button', title, class: [danger && 'danger', className].filter(Boolean).join(' ') || null, onclick: async () => {
    button.disabled = true;
    try {
      const said = await work();
      if (said !== null && said !== false) toast(typeof said === 'string' ? said : done ?? `${label}: done`);
    } catch (error) {
      toast(error.message, 'bad');
    } finally {
      button.disabled = false;
    }
  } }, label);
  return button;
}

export function pager(filters, nextCursor, onMove) {
  return h('div', { class: 'pager' },
    filters.cursor && h('button', { type: 'button', onclick: () => history.back() }, '← Newer'),
    nextCursor && h('button', { type: 'button', onclick: () => onMove(nextCursor) }, 'Older →'));
}

export function filterForm(fields, values, onChange) {
  const inputs = fields.map((field) => {
    const input = field.options
      ? h('select', { name: field.name }, ...field.options.map(([value, text]) => h('option', { value, selected: (values[field.name] ?? '') === value }, text)))
      : h('input', { name: field.name, type: field.kind ?? 'search', value: values[field.name] ?? '', placeholder: field.placeholder, list: field.list, 'data-search': field.isSearch ? '' : null, size: field.size });
    input.addEventListener('change', () => onChange({ [field.name]: input.value.trim() }));
    return h('label', {}, h('span', {}, field.label), input);
  });
  return h('form', { class: 'filters', role: 'search', onsubmit: (event) => { event.preventDefault(); onChange(Object.fromEntries(new FormData(event.target))); } }, ...inputs);
}

