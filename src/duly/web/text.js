// Numbers, durations and instants in words. Relative on screen, exact on hover.

import { h } from './dom.js';

const UNITS = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];

export function count(value, most = Infinity) {
  if (value === null || value === undefined) return '–';
  const text = Number(value).toLocaleString('en');
  return value >= most ? `${text}+` : text;
}

export function rate(value) {
  if (value === null || value === undefined) return '–';
  return value >= 100 ? Math.round(value).toLocaleString('en') : value.toFixed(value >= 10 ? 1 : 2);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return '–';
  const sign = seconds < 0 ? '-' : '';
  const s = Math.abs(seconds);
  if (s === 0) return '0 s';
  if (s < 0.001) return `${sign}< 1 ms`;
  if (s < 1) return `${sign}${Math.round(s * 1000)} ms`;
  if (s < 10) return `${sign}${s.toFixed(1)} s`;
  let left = Math.round(s);
  const parts = [];
  for (const [name, size] of UNITS) {
    const n = Math.floor(left / size);
    if (n && parts.length < 2) parts.push(`${n} ${name}`);
    left -= n * size;
    if (parts.length && size <= 60 && s >= 86400) break;
  }
  return sign + parts.join(' ');
}

export function exact(instant) {
  const at = new Date(instant);
  const offset = -at.getTimezoneOffset();
  const sign = offset < 0 ? '-' : '+';
  const pad = (n) => String(Math.floor(Math.abs(n))).padStart(2, '0');
  const local = new Date(at.getTime() + offset * 60000).toISOString().slice(0, 23).replace('T', ' ');
  return `${at.toISOString()} (UTC)\n${local} ${sign}${pad(offset / 60)}:${pad(offset % 60)} (here)`;
}

export function relative(instant, now = Date.now()) {
  const seconds = (new Date(instant).getTime() - now) / 1000;
  if (Math.abs(seconds) < 1) return 'now';
  const text = duration(Math.abs(seconds) < 10 ? Math.trunc(seconds) : Math.round(seconds));
  return seconds < 0 ? `${text.replace('-', '')} ago` : `in ${text}`;
}

export function when(instant) {
  if (!instant) return h('span', { class: 'quiet' }, '–');
  return h('time', { datetime: instant, title: exact(instant), class: 'when' }, relative(instant));
}

// A sentence of the server: its instants become times like all others.
const INSTANT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))/;

export function sentence(text) {
  return String(text ?? '').split(INSTANT).map((part, index) => (index % 2 ? when(part) : part));
}

export function refreshTimes(root) {
  const now = Date.now();
  for (const element of root.querySelectorAll('time.when')) {
    const text = relative(element.dateTime, now);
    if (element.textContent !== text) element.textContent = text;
  }
}

// JSON as it was sent: integers beyond 2^53 keep their digits.
export class ExactNumber {
  constructor(source) { this.source = source; }
}

export function parseExact(text) {
  return JSON.parse(text, (_key, value, context) => {
    if (typeof value !== 'number' || !context?.source) return value;
    return Number.isInteger(value) && !Number.isSafeInteger(value) ? new ExactNumber(context.source) : value;
  });
}

export function pretty(value, indent = '') {
  if (value instanceof ExactNumber) return value.source;
  if (Array.isArray(value)) {
    if (!value.length) return '[]';
    const inner = indent + '  ';
    return `[\n${value.map((each) => inner + pretty(each, inner)).join(',\n')}\n${indent}]`;
  }
  if (value && typeof value === 'object') {
    const entries = Object.entries(value);
    if (!entries.length) return '{}';
    const inner = indent + '  ';
    return `{\n${entries.map(([key, each]) => `${inner}${JSON.stringify(key)}: ${pretty(each, inner)}`).join(',\n')}\n${indent}}`;
  }
  return value === undefined ? '' : JSON.stringify(value);
}

export function shortId(id) {
  return id ? String(id).slice(0, 8) + '…' + String(id).slice(-4) : '–';
}

export function clip(text, most = 120) {
  const whole = String(text ?? '');
  return whole.length > most ? whole.slice(0, most) + '…' : whole;
}

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const DAY_CODES = { SUN: 0, MON: 1, TUE: 2, WED: 3, THU: 4, FRI: 5, SAT: 6, 7: 0 };
const MACROS = { '@hourly': '0 * * * *', '@daily': '0 0 * * *', '@midnight': '0 0 * * *', '@weekly': '0 0 * * 0', '@monthly': '0 0 1 * *', '@yearly': '0 0 1 1 *', '@annually': '0 0 1 1 *' };

// The usual expressions in words; others as they are.
export function cronInWords(cron) {
  const fields = (MACROS[cron] ?? cron).trim().split(/\s+/);
  if (fields.length !== 5) return cron;
  const [minute, hour, day, month, weekday] = fields;
  const step = (field) => /^\*\/(\d+)$/.exec(field)?.[1];
  const isNumber = (field) => /^\d+$/.test(field);
  if (month !== '*' || (day !== '*' && weekday !== '*')) return cron;
  let time;
  if (minute === '*' && hour === '*') time = 'every minute';
  else if (step(minute) && hour === '*') time = `every ${step(minute)} minutes`;
  else if (isNumber(minute) && hour === '*') time = `every hour at :${minute.padStart(2, '0')}`;
  else if (isNumber(minute) && step(hour)) time = `every ${step(hour)} hours at :${minute.padStart(2, '0')}`;
  else if (isNumber(minute) && /^\d+(,\d+)*$/.test(hour)) time = 'at ' + hour.split(',').map((each) => `${each.padStart(2, '0')}:${minute.padStart(2, '0')}`).join(' and ');
  else return cron;
  if (weekday === '*' && day === '*') return time;
  if (day !== '*') return isNumber(day) ? `${time} on day ${day} of the month` : cron;
  const name = (code) => DAYS[DAY_CODES[code.toUpperCase()] ?? Number(code)];
  if (/^(MON-FRI|1-5)$/i.test(weekday)) return `${time} from Monday to Friday`;
  const named = weekday.split(',').map(name);
  return named.every(Boolean) ? `${time} on ${named.join(' and ')}` : cron;
}
