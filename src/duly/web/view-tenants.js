// Tenants: limits beside what each does; for operators of the installation.

import { h } from './dom.js';
import { get, patch, inTurns } from './api.js';
import { count, duration } from './text.js';
import { table, emptyState, pager, action, ask, chip } from './parts.js';
import { filter, link } from './place.js';

export async function tenantsView({ who, subject, filters, refresh }) {
  const [page, busy] = await inTurns([
    () => get('/v1/tenants', { cursor: filters.cursor, limit: 100 }),
    () => get('/v1/stats/tenants', { limit: 100 }),
  ]);
  const activity = new Map(busy.items.map((each) => [each.tenant, each]));
  const rows = subject ? page.items.filter((tenant) => tenant.name === subject) : page.items;
  const limit = (value) => (value === null ? h('span', { class: 'quiet' }, 'none') : count(value));
  return [
    h('h1', {}, 'Tenants'),
    table('Tenants', [
      { title: 'Tenant', cell: (tenant) => h('span', { class: 'mono' }, tenant.name) },
      { title: 'State', cell: (tenant) => (tenant.suspended ? chip('PAUSED', 'SUSPENDED') : h('span', { class: 'quiet' }, 'active')) },
      { title: 'Started, 5 min', align: 'right', cell: (tenant) => count(activity.get(tenant.name)?.started ?? 0) },
      { title: 'Failed', align: 'right', cell: (tenant) => count(activity.get(tenant.name)?.failed ?? 0) },
      { title: 'Lag p99', align: 'right', cell: (tenant) => duration(activity.get(tenant.name)?.lag_p99_s) },
      { title: 'Weight', align: 'right', cell: (tenant) => tenant.weight },
      { title: 'Max in flight', align: 'right', cell: (tenant) => limit(tenant.in_flight_max) },
      { title: 'Starts/s', align: 'right', cell: (tenant) => limit(tenant.dispatch_rate) },
      { title: 'Submits/s', align: 'right', cell: (tenant) => limit(tenant.submit_rate) },
      { title: 'Max stored', align: 'right', cell: (tenant) => limit(tenant.stored_max) },
      ...(who.can.includes('administer') ? [{ title: 'Act', cell: (tenant) => action(tenant.suspended ? 'Resume' : 'Suspend', async () => {
        if (!tenant.suspended && !await ask({ title: `Suspend ${tenant.name}?`, text: 'Its calls are answered with 403, and its tasks wait.', confirm: 'Suspend', danger: true })) return null;
        await patch(`/v1/tenants/${tenant.name}`, { suspended: !tenant.suspended });
        refresh();
        return 'Done.';
      }, { className: 'small', danger: !tenant.suspended }) }] : []),
    ], rows, { rowKey: (tenant) => tenant.name, rowLink: (tenant) => link('tenants', tenant.name), empty: emptyState('No such tenant.') }),
    pager(filters, page.next_cursor, (next) => filter({ cursor: next })),
  ];
}
