// The shell: who is signed in, the views, live refresh, keys. A view draws itself into `main` and
// says what it shows again when something changed.

import { h, replace, redraw } from './dom.js';
import { call, get, whenSignedOut, actFor, actingFor } from './api.js';
import { here, go, link, onMove } from './place.js';
import { refreshTimes } from './text.js';
import { problem, skeleton, toast } from './parts.js';
import * as live from './live.js';
import { signIn, signInWithLink } from './view-signin.js';
import { nowView } from './view-now.js';
import { tasksView } from './view-tasks.js';
import { taskView } from './view-task.js';
import { workflowsView } from './view-workflows.js';
import { workflowView } from './view-workflow.js';
import { schedulesView, scheduleView } from './view-schedules.js';
import { lettersView } from './view-letters.js';
import { queuesView } from './view-queues.js';
import { tenantsView } from './view-tenants.js';
import { clusterView } from './view-cluster.js';
import { auditView } from './view-audit.js';

const VIEWS = [
  { name: 'now', title: 'Now', key: '1', show: nowView },
  { name: 'tasks', title: 'Tasks', key: '2', show: tasksView, one: taskView },
  { name: 'workflows', title: 'Workflows', key: '3', show: workflowsView, one: workflowView },
  { name: 'schedules', title: 'Schedules', key: '4', show: schedulesView, one: scheduleView },
  { name: 'dead-letters', title: 'Dead letters', key: '5', show: lettersView },
  { name: 'queues', title: 'Queues', key: '6', show: queuesView },
  { name: 'tenants', title: 'Tenants', key: '7', show: tenantsView, needs: (who) => who.reach === 'installation' },
  { name: 'cluster', title: 'Cluster', key: '8', show: clusterView, needs: (who) => who.reach === 'installation' },
  { name: 'audit', title: 'Audit', key: '9', show: auditView, needs: (who) => who.can.includes('observe') },
];
const KEYS = [
  ['/', 'search'], ['j / k', 'next / previous row'], ['Enter', 'open the row'], ['x', 'select the row'], ['1 to 9', 'views'], ['p', 'pause live refresh'], ['r', 'refresh'], ['Esc', 'close'], ['?', 'these keys'],
];
const TIMES_MS = 10000;

let who = null;
let drawing = 0;
// What a view has begun that goes on beside its refreshes.
const leaving = [];

async function start() {
  whenSignedOut(() => { who = null; showSignIn('The session has ended.'); });
  const { view, filters } = here();
  if (view === 'signin' && filters.link) {
    history.replaceState(null, '', location.pathname + location.search + '#/now');
    try { await signInWithLink(filters.link); } catch (error) { toast(error.message, 'bad'); }
  }
  try {
    who = await get('/v1/session');
  } catch (error) {
    showSignIn(error.message);
    return;
  }
  if (!who) { showSignIn(null); return; }
  drawShell();
  await show();
}

function showSignIn(message) {
  live.stop();
  for (const stop of leaving.splice(0)) stop();
  replace(document.getElementById('top'));
  replace(document.getElementById('nav'));
  signIn(document.getElementById('main'), message, start);
}

function drawShell() {
  const state = h('button', { type: 'button', class: 'small live', 'aria-pressed': String(live.isPaused()), onclick: () => live.pause(!live.isPaused()) });
  const say = (mode) => {
    replace(state, mode === 'paused' ? '‖ Paused' : mode === 'live' ? '● Live' : '◔ Every 5 s');
    state.title = mode === 'paused' ? 'Refresh is paused; press to go on (p)' : 'Press to pause (p)';
    state.setAttribute('aria-pressed', String(mode === 'paused'));
  };
  live.onState(say);
  say(live.state());
  const tenant = who.reach === 'installation'
    ? h('form', { class: 'acting', onsubmit: (event) => { event.preventDefault(); chooseTenant(event.target.tenant.value.trim()); } },
      h('label', {}, h('span', { class: 'unseen' }, 'Tenant'), h('input', { name: 'tenant', type: 'search', value: actingFor() ?? who.tenant, 'aria-label': 'Tenant', size: 12, autocomplete: 'off' })))
    : h('span', { class: 'quiet' }, who.tenant);
  replace(document.getElementById('top'),
    h('a', { class: 'brand', href: link('now') }, 'duly'), tenant,
    h('span', { class: 'space' }), state,
    h('span', { class: 'who', title: who.actor }, who.role),
    h('button', { type: 'button', class: 'small', title: 'Keys (?)', onclick: showKeys }, '?'),
    h('a', { href: 'docs', class: 'small' }, 'API'),
    h('button', { type: 'button', class: 'small', onclick: signOut }, 'Sign out'));
  drawNav();
}

function chooseTenant(name) {
  actFor(!name || name === who.tenant ? null : name);
  toast(`Shown: tenant ${name || who.tenant}`);
  show();
}

function drawNav() {
  const { view } = here();
  replace(document.getElementById('nav'), h('ul', {}, ...VIEWS.filter((each) => !each.needs || each.needs(who)).map((each) =>
    h('li', {}, h('a', { href: link(each.name), 'aria-current': each.name === view ? 'page' : null, title: `${each.title} (${each.key})` }, each.title)))));
}

async function show() {
  if (!who) return;
  const main = document.getElementById('main');
  const { view, subject, filters } = here();
  const chosen = VIEWS.find((each) => each.name === view) ?? VIEWS[0];
  const draw = subject && chosen.one ? chosen.one : chosen.show;
  const mine = ++drawing;
  for (const stop of leaving.splice(0)) stop();
  drawNav();
  document.title = `${subject ? subject.slice(0, 40) + ' · ' : ''}${chosen.title} · duly`;
  const box = boxOf(main, `${view}/${subject ?? ''}`, chosen.title);
  const draws = async () => {
    try {
      const content = await draw({ who, subject, filters: here().filters, refresh: () => refresh(), onLeave: (stop) => leaving.push(stop) });
      if (mine !== drawing || !content) return;
      if (box.dataset.drawn && isBusy(box)) return;
      redraw(box, content);
      box.dataset.drawn = 'yes';
    } catch (error) {
      if (mine !== drawing || error.status === 401) return;
      replace(box, h('h1', {}, chosen.title), problem(error));
    }
  };
  const refresh = oneAtATime(draws);
  await refresh();
  if (mine === drawing) live.watch(refresh);
}

// The same place with other filters is drawn over what stands there; another begins empty.
function boxOf(main, place, title) {
  const old = main.firstElementChild;
  if (old?.dataset.view === place) {
    delete old.dataset.drawn;
    old.dataset.place = location.hash;
    return old;
  }
  const box = h('div', { class: 'view', 'data-place': location.hash, 'data-view': place }, h('h1', {}, title), skeleton());
  replace(main, box);
  scrollTo(0, 0);
  return box;
}

// Whatever is asked for meanwhile is one more turn after this one.
function oneAtATime(work) {
  let running = null;
  let isAgain = false;
  const run = async () => {
    do { isAgain = false; await work(); } while (isAgain);
  };
  return () => {
    if (running) isAgain = true;
    else running = run().finally(() => { running = null; });
    return running;
  };
}

// What is typed, chosen or marked for copying is not drawn away.
function isBusy(box) {
  const marked = getSelection();
  return Boolean(box.querySelector('input:not([type=checkbox]):focus, textarea:focus, select:focus')) || (!marked.isCollapsed && box.contains(marked.anchorNode));
}

async function signOut() {
  await call('DELETE', '/v1/session');
  who = null;
  showSignIn('You are signed out.');
}

function showKeys() {
  const dialog = h('dialog', { 'aria-label': 'Keys', onclose: () => dialog.remove() }, h('h2', {}, 'Keys'),
    h('table', {}, h('tbody', {}, ...KEYS.map(([key, text]) => h('tr', {}, h('th', { scope: 'row' }, h('kbd', {}, key)), h('td', {}, text))))),
    h('form', { method: 'dialog', class: 'buttons' }, h('button', {}, 'Close')));
  document.body.append(dialog);
  dialog.showModal();
}

function moveRow(step) {
  const rows = [...document.querySelectorAll('main tbody tr[data-key]')];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement?.closest?.('tr[data-key]'));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at < 0 ? 0 : at + step))];
  next.tabIndex = -1;
  next.focus();
}

addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !who || document.querySelector('dialog[open]')) return;
  const isTyping = event.target.matches?.('input:not([type=checkbox]), textarea, select');
  if (event.key === 'Escape' && isTyping) { event.target.blur(); return; }
  if (isTyping) return;
  const row = document.activeElement?.closest?.('tr[data-key]');
  const view = VIEWS.find((each) => each.key === event.key && (!each.needs || each.needs(who)));
  if (view) go(view.name);
  else if (event.key === '?') showKeys();
  else if (event.key === '/') document.querySelector('main [data-search], main input[type=search]')?.focus();
  else if (event.key === 'j') moveRow(1);
  else if (event.key === 'k') moveRow(-1);
  else if (event.key === 'x' && row) row.querySelector('input[type=checkbox]')?.click();
  else if (event.key === 'Enter' && row?.dataset.href && document.activeElement === row) location.hash = row.dataset.href;
  else if (event.key === 'p') live.pause(!live.isPaused());
  else if (event.key === 'r') show();
  else return;
  event.preventDefault();
});

onMove(show);
setInterval(() => refreshTimes(document), TIMES_MS);
start();
