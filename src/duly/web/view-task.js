// One task: its bar through time, why it has not run yet, its attempts, payload, logs and actions.

import { h } from './dom.js';
import { call, get, post, inTurns } from './api.js';
import { when, duration, pretty, clip, sentence } from './text.js';
import { chip, panel, table, action, ask, copyButton, jsonBlock, emptyState, isJson } from './parts.js';
import { timeline } from './charts.js';
import { taskLogs } from './task-logs.js';
import { go, link } from './place.js';

const LIVE = new Set(['WAITING', 'SCHEDULED', 'READY', 'RUNNING']);

export async function taskView({ who, subject, refresh, onLeave }) {
  const [task, attempts, explained] = await inTurns([
    () => get(`/v1/tasks/${subject}`),
    () => get(`/v1/tasks/${subject}/attempts`, { limit: 50 }),
    () => get(`/v1/tasks/${subject}/explain`),
  ]);
  const isLive = LIVE.has(task.state);
  const isWaiting = task.state === 'WAITING';
  const node = isWaiting && task.node && (await get(`/v1/workflows/${task.workflow}/explain`, { node: task.node })).nodes[0];
  const mayChange = who.can.includes('submit') && (!who.types || who.types.includes(task.type));
  return [
    h('p', { class: 'crumbs' }, task.workflow
      ? [h('a', { href: link('workflows') }, 'Workflows'), ' / ', h('a', { href: link('workflows', task.workflow, { node: task.node }), class: 'mono' }, nodeName(task))]
      : [h('a', { href: link('tasks') }, 'Tasks'), ' / ', h('a', { href: link('tasks', null, { type: task.type }), class: 'mono' }, task.type)]),
    h('h1', { class: 'mono' }, task.id, ' ', copyButton(task.id), ' ', chip(task.state)),
    mayChange ? actions({ task, who, isLive, refresh }) : h('div', { class: 'buttons' }, copyButton(`duly tasks show ${task.id}`, 'Copy command')),
    isWaiting && node ? h('p', { class: 'verdict' }, waitWords(node), h('a', { href: link('workflows', task.workflow, { node: task.node }) }, 'See it in its workflow')) : explained && h('p', { class: 'verdict' }, sentence(explained.summary)),
    panel('Through time', timeline(task, attempts.items), legend()),
    h('div', { class: 'columns' },
      explained && isLive && explained.gates.length > 0 && panel('Why it has not run yet', ladder(explained)),
      panel('Facts', facts(task))),
    panel('Attempts', table('Attempts', [
      { title: 'Attempt', align: 'right', cell: (each) => each.attempt },
      { title: 'Outcome', cell: (each) => h('span', { class: `o-${each.outcome}` }, each.outcome.replaceAll('_', ' ')) },
      { title: 'Started', cell: (each) => when(each.started_at) },
      { title: 'Ran', align: 'right', cell: (each) => (each.started_at && each.ended_at ? duration((new Date(each.ended_at) - new Date(each.started_at)) / 1000) : '–') },
      { title: 'Fence', align: 'right', cell: (each) => each.fence },
      { title: 'Holder', cell: (each) => h('span', { class: 'mono quiet', title: each.holder }, clip(each.holder ?? '–', 13)) },
      { title: 'Error', cell: (each) => h('span', { class: 'mono clip wide', title: each.error }, each.error ? clip(each.error, 400) : '') },
    ], [...attempts.items].sort((a, b) => b.fence - a.fence), { rowKey: (each) => String(each.fence), empty: emptyState('It has not been tried yet.') })),
    panel('Logs', taskLogs(task.id, onLeave)),
    h('div', { class: 'columns' },
      panel('Payload', task.purged ? h('p', { class: 'quiet' }, 'Erased.') : jsonBlock(task.payload ?? null, 'Payload')),
      task.result !== undefined && panel('Result', jsonBlock(task.result, 'Result')),
      task.progress !== undefined && panel('Progress', jsonBlock(task.progress, 'Progress')),
      task.error && panel('Error', h('pre', { tabindex: '0', 'aria-label': 'Error' }, task.error))),
  ];
}

function nodeName(task) { return task.index === undefined ? task.node : `${task.node}[${task.index}]`; }

function waitWords({ detail, waits_for: waiting, parents = [] }) {
  if (waiting?.signal) return ['It waits for the signal ', h('strong', {}, waiting.signal), ` from the role ${waiting.role} or higher`, waiting.until && [', until ', when(waiting.until)], '. '];
  if (waiting) return ['It waits for its time, until ', when(waiting.until), '. '];
  return ['It ', sentence(detail), parents.length ? `: ${parents.map((each) => each.name).join(', ')}. ` : '. '];
}

function legend() {
  return h('p', { class: 'legend' }, ...[['planned', 'planned'], ['wait', 'waiting'], ['run o-running', 'runs'], ['run o-completed', 'completed'], ['run o-failed', 'failed'], ['backoff', 'backoff']].map(([kind, text]) =>
    h('span', {}, h('svg', { viewBox: '0 0 12 12', class: 'key', 'aria-hidden': 'true' }, h('rect', { width: 12, height: 12, rx: 2, class: `piece ${kind}` })), ' ', text)));
}

// Passed gates are ticked; the binding one is bold, with until and what unblocks it.
function ladder(explained) {
  return h('ol', { class: 'ladder' }, ...explained.gates.map((gate) => h('li', { class: gate.gate === explained.binding ? 'binding' : gate.open ? 'open' : 'closed' },
    h('span', { 'aria-hidden': 'true' }, gate.open ? '✓' : '✕'), ' ', h('span', {}, gate.gate.replaceAll('_', ' ')),
    h('span', { class: 'unseen' }, gate.open ? ' open' : ' closed'),
    !gate.open && gate.reason ? h('p', {}, sentence(gate.reason), gate.until && [' until ', when(gate.until)], gate.unblock && h('span', { class: 'hint' }, ' ', gate.unblock)) : null)),
  explained.estimate_at && h('li', { class: 'estimate' }, 'Should start ', when(explained.estimate_at)));
}

function facts(task) {
  const rows = [
    // A task that waits for other nodes, or for a signal, has no fire time yet.
    task.state === 'WAITING' ? ['Fires', 'when its workflow lets it'] : ['Fires', when(task.run_at)],
    ['Next', task.next_at && task.state !== 'RUNNING' && when(task.next_at)], ['Created', when(task.created_at)], ['Ended', task.finished_at && when(task.finished_at)],
    ['Target', h('span', { class: 'mono' }, task.target?.url ?? task.target?.pool ?? '–')],
    ['Attempt', `${task.attempt} of ${task.max_attempts}`], ['Priority', task.priority],
    ['Timeout', duration(task.timeout_s)], ['Execution key', task.execution_key && h('span', { class: 'mono' }, task.execution_key)],
    ['Idempotency key', task.idempotency_key && h('span', { class: 'mono' }, task.idempotency_key)],
    ['Concurrency key', task.concurrency_key && `${task.concurrency_key} (at most ${task.concurrency_limit ?? 1})`],
    ['Start by', task.start_by && when(task.start_by)], ['Fence', task.fence], ['Holder', task.holder && h('span', { class: 'mono' }, task.holder)],
    ['Lease until', task.lease_until && when(task.lease_until)], ['Cancel requested', task.cancel_requested && 'yes'],
    ['Replay of', task.replay_of && h('a', { href: link('tasks', task.replay_of), class: 'mono' }, task.replay_of)],
    ['Workflow', task.workflow && h('a', { href: link('workflows', task.workflow), class: 'mono' }, task.workflow)],
    ['Node', task.node && h('a', { href: link('workflows', task.workflow, { node: task.node }), class: 'mono' }, nodeName(task))],
    ['Reason', task.reason],
    ['Tags', task.tags && Object.entries(task.tags).map(([name, value]) => h('a', { href: link('tasks', null, { tag: `${name}:${value}` }), class: 'tag' }, `${name}:${value}`))],
  ];
  return h('dl', { class: 'facts' }, ...rows.filter(([, value]) => value !== undefined && value !== null && value !== false).map(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]));
}

// What the server would refuse is not offered: a node waits for its parents and is replayed by its workflow.
function actions({ task, who, isLive, refresh }) {
  const after = (text) => { refresh(); return text; };
  const isMovable = ['SCHEDULED', 'READY'].includes(task.state);
  const isOver = !isLive;
  return h('div', { class: 'buttons' },
    isMovable && action(task.attempt ? 'Retry now' : 'Run now', async () => { await post(`/v1/tasks/${task.id}/run-now`); return after('It is due now.'); }),
    isMovable && action('Reschedule', async () => {
      const given = await ask({ title: 'Fire again in', confirm: 'Reschedule', fields: [{ name: 'delay_s', label: 'Seconds from now', kind: 'number', min: 0, value: '60', required: true }] });
      if (!given) return null;
      await call('PATCH', `/v1/tasks/${task.id}`, { body: { delay_s: Number(given.delay_s) } });
      return after('Rescheduled.');
    }),
    isLive && action('Cancel', async () => {
      if (!await ask({ title: 'Cancel this task?', text: task.state === 'RUNNING' ? 'Its holder is asked to stop; it may still complete.' : 'It will not run.', confirm: 'Cancel the task', danger: true })) return null;
      await post(`/v1/tasks/${task.id}/cancel`);
      return after('Cancelled.');
    }, { danger: true }),
    task.state === 'FAILED' && !task.workflow && who.can.includes('operate') && action('Replay', async () => {
      if (!await ask({ title: 'Replay this task?', text: 'A new task with the same payload and execution key.', confirm: 'Replay the task' })) return null;
      const made = await post(`/v1/dead-letters/${task.id}/replay`);
      go('tasks', made.id);
      return 'Replayed as a new task.';
    }),
    isOver && !task.workflow && !task.purged && action('Submit again, edited', () => submitAgain(task)),
    isOver && task.workflow && h('a', { class: 'button', href: link('workflows', task.workflow, { node: task.node }) }, 'Run again in its workflow'),
    h('span', { class: 'space' }), copyButton(`duly tasks show ${task.id}`, 'Copy command'));
}

async function submitAgain(task) {
  const given = await ask({ title: 'A new task with this payload', confirm: 'Submit', fields: [{ name: 'payload', label: 'Payload (JSON)', kind: 'text', value: pretty(task.payload ?? null), check: isJson }] });
  if (!given) return null;
  const rest = JSON.stringify({ type: task.type, target: task.target, priority: task.priority, timeout_s: task.timeout_s, ...(task.tags ? { tags: task.tags } : {}) });
  const made = await call('POST', '/v1/tasks', { rawBody: `${rest.slice(0, -1)},"payload":${given.payload}}` });
  go('tasks', made.id);
  return 'Submitted as a new task.';
}
