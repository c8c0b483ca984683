// Live refresh: Server-Sent Events where the server sends them, polling where it does not. A pause
// stays until it is ended; a hidden page asks for nothing.

import { address } from './api.js';

const POLL_MS = 5000;
const TELL_AFTER_MS = 300;
const PAUSED = 'duly.paused';

let refresh = null;
let source = null;
let timer = null;
let soon = null;
let mode = 'polling';
const watchers = new Set();

export function isPaused() { return localStorage.getItem(PAUSED) === 'yes'; }
export function state() { return isPaused() ? 'paused' : mode; }
export function onState(watcher) { watchers.add(watcher); }

function say(next) {
  mode = next;
  for (const watcher of watchers) watcher(state());
}

export function pause(isOn) {
  localStorage.setItem(PAUSED, isOn ? 'yes' : 'no');
  if (isOn) stop(); else start();
  say(mode);
}

// One view at a time is refreshed.
export function watch(action) {
  refresh = action;
  if (!isPaused()) start();
}

export function stop() {
  source?.close();
  source = null;
  clearInterval(timer);
  clearTimeout(soon);
  timer = soon = null;
}

function start() {
  stop();
  listen();
  timer = setInterval(() => { if (mode === 'polling' && !document.hidden) refresh?.(); }, POLL_MS);
}

function listen() {
  source = new EventSource(address('/v1/events'), { withCredentials: true });
  source.addEventListener('open', () => say('live'));
  source.addEventListener('changed', changed);
  source.addEventListener('error', () => say('polling'));
}

// Many changes in a moment are one refresh.
function changed() {
  if (document.hidden || soon) return;
  soon = setTimeout(() => { soon = null; refresh?.(); }, TELL_AFTER_MS);
}

document.addEventListener('visibilitychange', () => { if (!document.hidden && !isPaused()) refresh?.(); });
