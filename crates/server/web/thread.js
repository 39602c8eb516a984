// One thread: its conversation as it grows, what it needs, what it may spend, and its raw log.

import {get, newKey, path, post} from './api.js';
import {action, dollars, el, fill, json, problem, status, time} from './dom.js';
import {card as needCard} from './inbox.js';
import {verifyThread} from './verify.js';

const LINES = 1000;

export async function open(id) {
  const head = el('div', {});
  const needs = el('div', {});
  const entries = el('div', {role: 'log', 'aria-live': 'off'});
  const drafts = el('div', {'aria-live': 'polite'});
  const raw = el('div', {hidden: true});
  const proof = el('div', {});
  const note = el('div', {});
  let next = 0;
  let reading = null;
  let isStale = false;
  let details = await get(path('threads', id));
  id = details.thread_id;

  /** Reads the lines that are new. Only one reading at a time: what is committed meanwhile is read right after it. */
  function read() {
    isStale = true;
    reading ??= (async () => {
      try {
        while (isStale) {
          isStale = false;
          let page;
          do {
            page = await get(`${path('threads', id, 'log')}?${new URLSearchParams({from: next, limit: LINES})}`);
            for (const line of page.lines) {
              next = line.seq + 1;
              raw.append(rawLine(line));
              entries.append(...shown(line, id));
            }
          } while (page.next !== null);
          fill(drafts);
          await refresh();
        }
      } catch (error) {
        fill(note, problem(error));
      } finally {
        reading = null;
      }
    })();
    return reading;
  }

  async function refresh() {
    details = await get(path('threads', id));
    fill(head, about(details));
    const all = (await get('/v1/inbox')).needs.filter(need => need.thread_id === id);
    if (!(needs.contains(document.activeElement) && document.activeElement.matches('textarea, input'))) {
      fill(needs, all.map(need => needCard(need, read)));
    }
    const isRunning = details.status === 'running';
    for (const button of buttons.querySelectorAll('button[data-running]')) button.disabled = !isRunning;
  }

  const message = el('textarea', {id: 'message', placeholder: 'A message to this thread'});
  let key = newKey();
  const send = action('Send', async () => {
    if (!message.value.trim()) return;
    const sent = await post(path('threads', id, 'send'), {text: message.value}, key);
    key = newKey();
    message.value = '';
    if (sent.thread_id !== id) location.hash = `#/thread/${encodeURIComponent(sent.thread_id)}`;
  }, {class: 'main'});
  const raise = el('input', {'aria-label': 'Raise the spend limit to', placeholder: 'Raise spend to $', size: 14});
  const buttons = el('div', {class: 'row'},
    send,
    action('Cancel the run', () => post(path('threads', id, 'cancel')), {'data-running': true}),
    action('Resume', async () => {
      const body = raise.value.trim() ? {raise: {spend: raise.value.trim().replace('$', '')}} : {};
      await post(path('threads', id, 'resume'), body);
    }), raise,
    action('Verify in this browser', async () => fill(proof, await verifyThread(id))),
    action('Raw log', async () => {
      raw.hidden = !raw.hidden;
      entries.hidden = !raw.hidden;
    }));
  const element = el('article', {}, head, needs, el('label', {for: 'message', class: 'dim'}, 'Message'), message, buttons, proof, note, entries, raw, drafts);
  await read();

  const drafted = new Draft(drafts);
  return {
    element,
    tell(name, data) {
      if (data.thread_id !== id) return;
      if (name === 'commit' || name === 'ended') read();
      else if (name === 'draft') drafted.add(data);
      else if (name === 'calling') drafted.calling(data);
      else if (name === 'retrying' || name === 'notice') fill(note, el('p', {class: 'warn'}, data.why));
    },
  };
}

/** What is answered right now and not committed yet. */
class Draft {
  constructor(place) {
    this.place = place;
    this.attempt = null;
  }

  add({run_id: run, attempt, draft}) {
    const name = `${run} ${attempt}`;
    if (draft.draft === 'void' || this.attempt !== name || !this.text?.isConnected) {
      this.attempt = name;
      this.text = el('div', {class: 'message'});
      fill(this.place, el('div', {class: 'card draft'}, el('span', {class: 'dim'}, 'answering, not committed yet'), this.text));
    }
    if (draft.draft === 'text') this.text.append(draft.text);
    else if (draft.draft === 'thinking') this.text.append(el('span', {class: 'dim'}, draft.text));
    else if (draft.draft === 'tool_call') this.text.append(`\n${draft.name} `);
    else if (draft.draft === 'arguments') this.text.append(draft.text);
  }

  calling({tool}) {
    this.place.append(el('p', {class: 'dim'}, `calling ${tool}…`));
  }
}

function about(thread) {
  const limits = Object.entries(thread.limits ?? {}).map(([name, most]) => `${name.replaceAll('_', ' ')} ${name === 'spend' ? dollars(most) : most}`).join(', ');
  const link = id => el('a', {href: `#/thread/${encodeURIComponent(id)}`}, id);
  const rows = [
    ['thread', thread.thread_id],
    ['agent', thread.agent_id],
    ['directive', thread.directive],
    ['status', el('span', {}, status(thread.status), thread.outcome?.why ? ` ${thread.outcome.why}` : '')],
    ['version', `${thread.version}, ${thread.head.lines} lines, ${thread.head.bytes.toLocaleString()} bytes`],
    ['spent', `${dollars(thread.cost?.spend)}, ${thread.cost?.turns ?? 0} turns, ${((thread.cost?.input_tokens ?? 0) + (thread.cost?.output_tokens ?? 0)).toLocaleString()} tokens`],
    ['limits', limits],
    ['parent', thread.parent_id && link(thread.parent_id)],
    ['chain', thread.chain.length > 1 && el('span', {}, thread.chain.flatMap((id, place) => [place > 0 ? ' → ' : '', id === thread.thread_id ? 'this thread' : link(id)]))],
    ['children', thread.children.length > 0 && el('span', {}, thread.children.map(child => el('div', {}, link(child.thread_id), ' ', status(child.status), ` ${dollars(child.cost?.spend)}`)))],
    ['updated', time(thread.updated_at)],
  ];
  return el('div', {}, el('h1', {}, thread.title || thread.thread_id),
    el('dl', {}, rows.filter(([, value]) => value).flatMap(([name, value]) => [el('dt', {}, name), el('dd', {}, value)])));
}

function rawLine(line) {
  return el('details', {class: 'card'},
    el('summary', {}, `${line.seq}  ${line.event_type}  `, time(line.timestamp)), json(line.payload));
}

/** What a line shows in the conversation: nothing for most events. */
function shown(line, thread) {
  const said = line.payload;
  switch (line.event_type) {
    case 'message': return [message(said, thread)];
    case 'tool_outcome': return said.error ? [el('p', {class: 'bad'}, `${said.tool ?? said.call_id}: ${typeof said.error === 'string' ? said.error : JSON.stringify(said.error)}`)] : [];
    case 'suspended': return [el('p', {class: 'warn'}, `Suspended: ${said.reason}${said.code ? ` (${said.code})` : ''}`)];
    case 'decision': return [el('p', {class: 'dim'}, `Decision: ${said.action} of ${said.call_id}${said.who ? `, by ${said.who}` : ''}`)];
    case 'thread_handoff': return [el('p', {class: 'dim'}, 'Continued in ', el('a', {href: `#/thread/${encodeURIComponent(said.new_thread_id)}`}, said.new_thread_id))];
    case 'child_spawned': return [el('p', {class: 'dim'}, 'Started ', el('a', {href: `#/thread/${encodeURIComponent(said.child_thread_id ?? said.thread_id ?? '')}`}, said.child_thread_id ?? said.thread_id ?? 'a child'))];
    case 'run_finished': return [el('p', {class: 'dim'}, `Run ended: ${said.meta?.termination_code ?? 'recorded'}`)];
    default: return [];
  }
}

function message(said, thread) {
  const blocks = typeof said.content === 'string' ? [{type: 'text', text: said.content}] : said.content ?? [];
  return el('div', {class: 'card'}, el('header', {}, el('strong', {}, said.role), said.visibility === 'internal' && el('span', {class: 'dim'}, 'internal')),
    blocks.map(block => shownBlock(block, thread)));
}

function shownBlock(block, thread) {
  switch (block.type) {
    case 'text': return el('div', {class: 'message'}, block.text, block.blob && el('p', {class: 'dim'}, `Shortened; the whole is blob ${block.blob}`));
    case 'thinking': return el('details', {}, el('summary', {}, 'Thinking'), el('div', {class: 'message dim'}, block.text ?? block.thinking ?? ''));
    case 'tool_call': return el('details', {open: true}, el('summary', {}, `Calls ${block.name}`), json(block.arguments));
    case 'tool_result': return el('details', {}, el('summary', {class: block.is_error ? 'bad' : undefined}, `Result${block.is_error ? ', an error' : ''}`), typeof block.content === 'string' ? el('div', {class: 'message'}, block.content) : json(block.content));
    default: return el('details', {}, el('summary', {}, block.type), json(block));
  }
}
