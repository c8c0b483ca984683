// Signing in: an API key or JWT is exchanged once for a session that scripts cannot read.

import { h, replace } from './dom.js';
import { post } from './api.js';
import { commandLine } from './parts.js';

export async function signInWithLink(token) { await post('/v1/session', { link: token }); }

export function signIn(main, message, then) {
  const failed = h('p', { class: 'tone-bad', role: 'alert' }, message ?? '');
  const field = h('input', { name: 'credential', type: 'password', required: true, autocomplete: 'current-password', spellcheck: 'false', 'aria-describedby': 'signin-hint' });
  const form = h('form', { class: 'signin', onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post('/v1/session', { credential: field.value.trim() });
      field.value = '';
      then();
    } catch (error) {
      replace(failed, error.status === 401 ? 'This key is not known, or no longer.' : error.message);
      field.select();
    }
  } },
  h('h1', {}, 'Sign in'), failed,
  h('label', {}, 'API key or JWT', field),
  h('p', { class: 'hint', id: 'signin-hint' }, 'It is exchanged for a session of this browser and kept nowhere.'),
  h('button', { class: 'primary' }, 'Sign in'),
  h('p', { class: 'hint' }, 'A link that signs in once:'), commandLine('duly dashboard'));
  replace(main, form);
  field.focus();
}
