// The list of threads: filters, search, and a form for a new one.

import {get, newKey, post} from './api.js';
import {action, dollars, el, fill, problem, status, time} from './dom.js';

const STATUSES = ['created', 'running', 'suspended', 'completed', 'completed_with_errors', 'error', 'cancelled', 'killed', 'continued'];
const PAGE = 100;

export async function open() {
  const rows = el('tbody', {});
  const note = el('p', {class: 'dim', role: 'status'});
  const more = el('div', {class: 'row'});
  const text = el('input', {type: 'search', id: 'text', placeholder: 'Title or id'});
  const which = el('select', {id: 'which'}, el('option', {value: ''}, 'any status'), STATUSES.map(word => el('option', {value: word}, word.replaceAll('_', ' '))));
  let shown = new Map();

  const query = after => {
    const asked = new URLSearchParams({limit: PAGE});
    if (text.value.trim()) asked.set('text', text.value.trim());
    if (which.value) asked.set('status', which.value);
    if (after !== undefined) asked.set('after', after);
    return `/v1/threads?${asked}`;
  };

  async function load(after) {
    const page = await get(query(after));
    if (after === undefined) {
      shown = new Map();
      rows.replaceChildren();
    }
    for (const thread of page.threads) {
      const made = row(thread);
      shown.set(thread.thread_id, made);
      rows.append(made);
    }
    const isFiltered = text.value.trim() !== '' || which.value !== '';
    note.textContent = shown.size === 0
      ? (isFiltered ? 'No thread matches the filter.' : 'There are no threads yet.')
      : isFiltered ? `${shown.size} threads match; the filter hides the others.` : '';
    fill(more, page.next !== null && action('Show more', () => load(page.next)));
  }

  let due = null;
  const again = delay => {
    clearTimeout(due);
    due = setTimeout(() => load().catch(error => fill(more, problem(error))), delay);
  };
  text.addEventListener('input', () => again(200));
  which.addEventListener('change', () => again(0));

  const pending = new Set();
  async function refresh(id) {
    if (pending.has(id)) return;
    pending.add(id);
    await new Promise(resolve => setTimeout(resolve, 250));
    pending.delete(id);
    const old = shown.get(id);
    if (!old) {
      if (!text.value.trim() && !which.value) again(0);
      return;
    }
    const thread = await get(`/v1/threads/${encodeURIComponent(id)}`).catch(() => null);
    if (!thread) return;
    const made = row(thread);
    old.replaceWith(made);
    shown.set(id, made);
  }

  const element = el('section', {},
    el('h1', {}, 'Threads'),
    el('div', {class: 'row', role: 'search'},
      el('label', {for: 'text', class: 'dim'}, 'Filter'), text, which),
    find(),
    note,
    el('div', {class: 'scroll'}, el('table', {},
      el('thead', {}, el('tr', {}, ['Thread', 'Status', 'Agent', 'Spent', 'Updated'].map((name, place) => el('th', {scope: 'col', class: place === 2 ? 'wide' : undefined}, name)))),
      rows)),
    more,
    start());
  await load();
  return {element, tell: (name, data) => name === 'commit' && refresh(data.thread_id), close: () => clearTimeout(due)};
}

function row(thread) {
  const title = thread.title || thread.thread_id;
  return el('tr', {},
    el('td', {}, el('a', {href: `#/thread/${encodeURIComponent(thread.thread_id)}`}, title), thread.title && el('div', {class: 'dim'}, thread.thread_id)),
    el('td', {}, status(thread.status)),
    el('td', {class: 'wide'}, thread.agent_id),
    el('td', {}, dollars(thread.cost?.spend), thread.limits?.spend ? el('span', {class: 'dim'}, ` of ${dollars(thread.limits.spend)}`) : null),
    el('td', {}, time(thread.updated_at)));
}

/** Search over the content of all threads. */
function find() {
  const words = el('input', {type: 'search', id: 'words', placeholder: 'Words in messages, "a phrase", status:suspended', size: 40});
  const found = el('div', {});
  const form = el('form', {class: 'row'}, el('label', {for: 'words', class: 'dim'}, 'Search'), words, el('button', {}, 'Search'));
  form.addEventListener('submit', async event => {
    event.preventDefault();
    if (!words.value.trim()) return fill(found);
    try {
      const answer = await get(`/v1/search?${new URLSearchParams({q: words.value})}`);
      const results = answer.results ?? [];
      fill(found,
        el('p', {class: 'dim', role: 'status'}, `${results.length} threads found`),
        results.map(result => el('div', {class: 'card'},
          el('a', {href: `#/thread/${encodeURIComponent(result.thread_id)}`}, result.title || result.thread_id),
          el('div', {class: 'message'}, result.passage ?? ''))));
    } catch (error) {
      fill(found, problem(error));
    }
  });
  return el('div', {}, form, found);
}

/** The form for a new thread. */
function start() {
  const directive = el('input', {id: 'directive', placeholder: 'hello'});
  const inputs = el('textarea', {id: 'inputs', placeholder: '{"name": "value"}'});
  const note = el('div', {});
  let key = newKey();
  const go = action('Run', async () => {
    const given = inputs.value.trim() ? JSON.parse(inputs.value) : {};
    const made = await post('/v1/threads', {directive: directive.value.trim(), inputs: given}, key);
    key = newKey();
    location.hash = `#/thread/${encodeURIComponent(made.thread_id)}`;
  }, {class: 'main'});
  return el('details', {class: 'card'}, el('summary', {}, 'Run a directive'),
    el('div', {class: 'row'}, el('label', {for: 'directive'}, 'Directive'), directive),
    el('label', {for: 'inputs'}, 'Inputs, as JSON'), inputs,
    el('div', {class: 'row'}, go), note);
}
