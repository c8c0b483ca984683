// Audit: who did what, and when. Append-only in the database.

import { h } from './dom.js';
import { get } from './api.js';
import { when, pretty, clip } from './text.js';
import { table, emptyState, filterForm, pager } from './parts.js';
import { filter } from './place.js';

export async function auditView({ filters }) {
  const { action, actor, cursor } = filters;
  const page = await get('/v1/audit', { action, actor, cursor, limit: 50 });
  return [
    h('h1', {}, 'Audit'),
    filterForm([
      { name: 'action', label: 'Action', isSearch: true, size: 20 },
      { name: 'actor', label: 'Actor', size: 20 },
    ], filters, (changes) => filter(changes)),
    table('Audit', [
      { title: 'When', cell: (each) => when(each.at) },
      { title: 'Actor', cell: (each) => h('span', { class: 'mono' }, each.actor) },
      { title: 'Action', cell: (each) => each.action },
      { title: 'Subject', cell: (each) => h('span', { class: 'mono clip', title: each.subject }, each.subject) },
      { title: 'Detail', className: 'grow', cell: (each) => h('span', { class: 'mono clip wide quiet', title: pretty(each.detail) }, clip(pretty(each.detail).replace(/\s+/g, ' '), 300)) },
    ], page.items, { rowKey: (each) => String(each.id), empty: emptyState('Nothing was changed yet.') }),
    pager(filters, page.next_cursor, (next) => filter({ cursor: next })),
  ];
}
