// The public API, called with the session's cookie. Addresses are relative to the page, so a path
// prefix in front of it changes nothing.

import { parseExact } from './text.js';

export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `HTTP ${status}`);
    this.status = status;
    this.code = problem.code ?? '';
    this.errors = problem.errors ?? [];
  }
}

const BASE = new URL('.', document.baseURI);
let tenant = null;
let onSignedOut = () => {};

export function actFor(name) { tenant = name; }
export function actingFor() { return tenant; }
export function whenSignedOut(action) { onSignedOut = action; }

export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ''), BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== '') url.searchParams.set(name, value);
  }
  if (tenant && !url.searchParams.has('tenant') && !path.startsWith('/v1/session')) url.searchParams.set('tenant', tenant);
  return url;
}

export async function call(method, path, { query, body, rawBody, signal } = {}) {
  const options = { method, headers: {}, credentials: 'same-origin', signal };
  if (body !== undefined || rawBody !== undefined) {
    options.headers['content-type'] = 'application/json';
    options.body = rawBody ?? JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(address(path, query), options);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, { detail: 'the server cannot be reached', code: 'unreachable' });
  }
  const text = answer.status === 204 ? '' : await answer.text();
  if (answer.ok) return text ? parseExact(text) : null;
  let problem = {};
  try { problem = JSON.parse(text); } catch { problem = { detail: `HTTP ${answer.status}` }; }
  if (answer.status === 401 && path !== '/v1/session') onSignedOut();
  throw new ApiError(answer.status, problem);
}

export const get = (path, query, signal) => call('GET', path, { query, signal });
export const post = (path, body, query) => call('POST', path, { body: body ?? {}, query });
export const patch = (path, body) => call('PATCH', path, { body });
export const remove = (path) => call('DELETE', path);

// A few at a time, so that one view cannot use up the reads of its tenant.
export async function inTurns(tasks, most = 3) {
  const waiting = [...tasks.entries()];
  const answers = new Array(tasks.length);
  const work = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) answers[next[0]] = await next[1]();
  };
  await Promise.all(Array.from({ length: most }, work));
  return answers;
}
