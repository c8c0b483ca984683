// Workflows: the list, newest first, with how far each is.

import { h } from './dom.js';
import { get } from './api.js';
import { when, duration, shortId } from './text.js';
import { chip, table, emptyState, filterForm, pager, share } from './parts.js';
import { filter, link } from './place.js';

const STATES = ['', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED'];

export async function workflowsView({ filters }) {
  const { state, name, tag, cursor } = filters;
  const page = await get('/v1/workflows', { state, name, tag, cursor, limit: 50 });
  return [
    h('h1', {}, 'Workflows'),
    filterForm([
      { name: 'name', label: 'Name', placeholder: 'invoice.month', isSearch: true, size: 24 },
      { name: 'state', label: 'State', options: STATES.map((each) => [each, each || 'any']) },
      { name: 'tag', label: 'Tag', placeholder: 'env:prod', size: 12 },
    ], filters, (changes) => filter(changes)),
    table('Workflows', [
      { title: 'State', cell: (flow) => [chip(flow.state), flow.paused_at && [' ', chip('PAUSED')]] },
      { title: 'Name', cell: (flow) => h('a', { href: link('workflows', flow.id), class: 'mono', title: flow.id }, flow.name) },
      { title: 'Id', cell: (flow) => h('span', { class: 'mono quiet', title: flow.id }, shortId(flow.id)) },
      { title: 'Type', cell: (flow) => h('span', { class: 'mono quiet' }, flow.type ?? '') },
      { title: 'Nodes', cell: (flow) => share(flow.counts) },
      { title: 'Created', cell: (flow) => when(flow.created_at) },
      { title: 'Took', align: 'right', cell: (flow) => (flow.ended_at ? duration((new Date(flow.ended_at) - new Date(flow.created_at)) / 1000) : '') },
      { title: 'Ended', cell: (flow) => when(flow.ended_at) },
    ], page.items, { rowKey: (flow) => flow.id, rowLink: (flow) => link('workflows', flow.id), empty: emptyState('No workflows. Submit the first:', 'duly workflows submit flow.json') }),
    pager(filters, page.next_cursor, (next) => filter({ cursor: next })),
  ];
}
