// What the handlers of a task logged: followed while the task runs, kept while its page is refreshed.

import { h, append } from './dom.js';
import { get } from './api.js';
import { exact } from './text.js';
import * as live from './live.js';

const LINES_MAX = 2000;
const FOLLOW_S = 20;
const AGAIN_MS = 3000;

let current = null;

// The panel of this task; the same one when the page is drawn again.
export function taskLogs(id, onLeave) {
  if (current?.id === id) return current.element;
  current?.stop();
  current = follow(id);
  const mine = current;
  onLeave(() => { mine.stop(); if (current === mine) current = null; });
  return current.element;
}

function follow(id) {
  const lines = h('pre', { class: 'logs', tabindex: '0', 'aria-label': 'Log lines' });
  const state = h('p', { class: 'hint' }, 'Reading …');
  const element = h('div', {}, lines, state);
  const gone = new AbortController();
  let after = null;
  let isFirst = true;
  let fence = null;
  let dropped = 0;
  let timer = null;
  const show = (items) => {
    const isAtEnd = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 24;
    for (const item of items) {
      if (item.fence !== fence) {
        fence = item.fence;
        append(lines, [h('span', { class: 'log-head' }, `— fence ${fence} —`), '\n']);
      }
      append(lines, [logLine(item)]);
    }
    while (lines.childNodes.length > LINES_MAX) { lines.firstChild.remove(); dropped += 1; }
    if (isAtEnd) lines.scrollTop = lines.scrollHeight;
  };
  // A page that is paused or not seen asks for nothing.
  const read = async () => {
    if (document.hidden || (live.isPaused() && !isFirst)) { timer = setTimeout(read, AGAIN_MS); return; }
    try {
      const page = await get(`/v1/tasks/${id}/logs`, { after, follow: isFirst ? null : FOLLOW_S }, gone.signal);
      show(page.items);
      after = page.after;
      isFirst = false;
      lines.hidden = !lines.childNodes.length;
      state.textContent = page.is_over ? (lines.hidden ? 'Nothing was logged.' : '') : 'Following; new lines appear by themselves.';
      if (dropped) state.textContent += ` The newest ${LINES_MAX} lines are shown.`;
      if (!page.is_over) read();
    } catch (error) {
      if (gone.signal.aborted || error.status === 401) return;
      state.textContent = error.status === 404 ? 'No logs are kept here.' : `${error.message}; asking again`;
      if (error.status !== 404) timer = setTimeout(read, AGAIN_MS);
    }
  };
  lines.hidden = true;
  read();
  return { id, element, stop: () => { gone.abort(); clearTimeout(timer); } };
}

function logLine({ at, level, text }) {
  return h('span', { class: `log l-${level}` },
    h('span', { class: 'quiet', title: exact(at) }, new Date(at).toTimeString().slice(0, 8), '.', String(new Date(at).getMilliseconds()).padStart(3, '0')), ' ',
    h('span', { class: 'level' }, level.padEnd(7)), ' ', h('span', { class: 'said' }, text), '\n');
}
