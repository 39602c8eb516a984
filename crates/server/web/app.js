// The page: which view is shown, and what the event stream tells it.

import {begin, follow, get, keep} from './api.js';
import {action, el, fill, problem} from './dom.js';
import * as inbox from './inbox.js';
import * as thread from './thread.js';
import * as threads from './threads.js';
import * as verify from './verify.js';

const content = document.getElementById('content');
let view = null;

/** Views: what an address begins with. A view is `{element, tell?}`. */
const VIEWS = [
  ['#/thread/', rest => thread.open(decodeURIComponent(rest))],
  ['#/threads', () => threads.open()],
  ['#/inbox', () => inbox.open()],
  ['#/verify', () => verify.open()],
];

async function show() {
  const address = location.hash || '#/threads';
  const [start, open] = VIEWS.find(([start]) => address.startsWith(start)) ?? VIEWS[1];
  for (const link of document.querySelectorAll('header nav a')) {
    if (link.getAttribute('href') === address || (start === '#/thread/' && link.hash === '#/threads')) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  try {
    view?.close?.();
    view = await open(address.slice(start.length));
    fill(content, view.element);
  } catch (error) {
    view = null;
    fill(content, error.status === 401 ? askForToken(error) : problem(error));
  }
}

function askForToken(error) {
  const field = el('input', {type: 'password', id: 'token', autocomplete: 'off', size: 40});
  const use = action('Use it', async () => {
    keep(field.value.trim());
    await start();
  }, {class: 'main'});
  return el('div', {class: 'card'},
    el('h1', {}, 'This needs a token'),
    el('p', {}, error.hint ?? ''),
    el('div', {class: 'row'}, el('label', {for: 'token'}, 'Token'), field, use));
}

let counting = null;

/** The number of needs, at most one request at a time and one more after it. */
function count() {
  counting ??= (async () => {
    await new Promise(resolve => setTimeout(resolve, 300));
    counting = null;
    const {needs} = await get('/v1/inbox').catch(() => ({needs: []}));
    const badge = document.getElementById('waiting');
    badge.textContent = needs.length;
    badge.hidden = needs.length === 0;
    badge.setAttribute('aria-label', `${needs.length} waiting`);
  })();
}

let isFollowing = false;

async function start() {
  const about = await get('/v1/whoami').catch(() => null);
  if (about) {
    document.getElementById('project').textContent = about.project;
    document.title = `Selvedge: ${about.project}`;
    if (!isFollowing) {
      isFollowing = true;
      const state = word => { document.getElementById('connection').textContent = word; };
      const tell = (name, data) => {
        view?.tell?.(name, data);
        if (name === 'commit') count();
      };
      follow(tell, state).finally(() => { isFollowing = false; });
      count();
    }
  }
  await show();
}

addEventListener('hashchange', show);
begin().catch(error => fill(content, problem(error))).then(start);
