// Where we are: the view, its subject and its filters are the part of the URL behind `#`. One store;
// views read it and change it, and the browser's back button works.

const listeners = new Set();

export function here() {
  const [path, query = ''] = location.hash.replace(/^#\/?/, '').split('?');
  const [view = '', ...rest] = path.split('/').map(decodeURIComponent);
  return { view: view || 'now', subject: rest.join('/') || null, filters: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(view, subject = null, filters = {}) {
  const given = Object.entries(filters).filter(([, value]) => value !== null && value !== undefined && value !== '');
  const query = new URLSearchParams(given).toString();
  return `#/${view}${subject ? '/' + encodeURIComponent(subject) : ''}${query ? '?' + query : ''}`;
}

export function go(view, subject = null, filters = {}) { location.hash = link(view, subject, filters); }

// Changes filters of the view we are in; an empty one goes.
export function filter(changes, { keep = true } = {}) {
  const { view, subject, filters } = here();
  const next = keep ? { ...filters, ...changes } : changes;
  if (keep && !('cursor' in changes)) delete next.cursor;
  location.hash = link(view, subject, next);
}

export function onMove(listener) { listeners.add(listener); }

addEventListener('hashchange', () => { for (const listener of listeners) listener(here()); });
