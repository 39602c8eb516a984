// What waits for a person: approvals and calls whose outcome is unknown. A decision is bound to the hash of what is shown.

import {get, path, post} from './api.js';
import {action, el, fill, json, problem, time} from './dom.js';

export async function open() {
  const list = el('div', {});
  let due = null;

  async function load() {
    const {needs} = await get('/v1/inbox');
    fill(list, needs.length === 0 ? el('p', {class: 'dim'}, 'Nothing waits for a decision.') : needs.map(need => card(need, load)));
  }
  const tell = name => {
    if (name !== 'commit' && name !== 'ended') return;
    // A decision that is being written is not thrown away.
    if (list.contains(document.activeElement) && document.activeElement.matches('textarea, input')) return;
    clearTimeout(due);
    due = setTimeout(() => load().catch(error => fill(list, problem(error))), 300);
  };
  await load();
  return {element: el('section', {}, el('h1', {}, 'Inbox'), list), tell, close: () => clearTimeout(due)};
}

/** One need, with what can be done about it. */
export function card(need, done) {
  const isApproval = need.reason === 'approval' && need.call_id && need.action_hash;
  const isUnknown = need.call_id && !need.action_hash;
  return el('article', {class: 'card'},
    el('header', {class: 'row'},
      el('strong', {}, need.tool ? `${need.tool}` : need.reason),
      el('a', {href: `#/thread/${encodeURIComponent(need.thread_id)}`}, need.title || need.thread_id),
      need.since && el('span', {class: 'dim'}, time(need.since))),
    need.why && el('p', {}, need.why),
    need.arguments !== null && need.arguments !== undefined && json(need.arguments),
    need.call_id && need.arguments === null && el('p', {class: 'warn'}, 'The arguments can’t be read from the log. Verify the thread before you decide.'),
    need.answered && el('p', {class: 'dim'}, `Answered (${need.answered}); the process that runs the thread will apply it.`),
    need.expired && el('p', {class: 'warn'}, 'The time to decide is over. Resumed, the thread continues without the call.'),
    isApproval && !need.expired && !need.answered && approval(need, done),
    isUnknown && !need.answered && unknown(need, done),
    (!need.call_id || need.expired) && el('div', {class: 'row'}, action('Resume', async () => {
      await post(path('threads', need.thread_id, 'resume'));
      await done();
    })),
    commands(need));
}

const decide = (need, body) => post(path('threads', need.thread_id, 'calls', need.call_id, 'decision'), body);

function approval(need, done) {
  const edited = el('textarea', {'aria-label': 'Arguments', value: JSON.stringify(need.arguments, null, 2)});
  const reason = el('input', {'aria-label': 'Reason of a denial', placeholder: 'Reason of a denial'});
  const send = body => async () => {
    await decide(need, {action_hash: need.action_hash, who: 'page', ...body()});
    await done();
  };
  return el('div', {},
    el('div', {class: 'row'},
      action('Approve', send(() => ({decision: 'approve'})), {class: 'main'}),
      action('Deny', send(() => ({decision: 'deny', reason: reason.value.trim() || null}))), reason),
    el('details', {}, el('summary', {}, 'Approve with other arguments'), edited,
      el('div', {class: 'row'}, action('Approve edited', send(() => ({decision: 'edit', value: JSON.parse(edited.value)}))))));
}

function unknown(need, done) {
  const result = el('input', {'aria-label': 'Result', placeholder: 'Result, if it took effect'});
  const send = body => async () => {
    await decide(need, {who: 'page', ...body()});
    await done();
  };
  return el('div', {},
    el('p', {}, 'The outcome of this call is unknown. Find out whether it took effect, then say so.'),
    el('div', {class: 'row'},
      action('It took effect', send(() => ({decision: 'done', value: result.value.trim() || 'done'}))), result,
      action('It did not: dispatch it again', send(() => ({decision: 'not_done'}))),
      action('It can’t be found out', send(() => ({decision: 'unknown'})))));
}

const commands = need => need.commands?.length > 0 && el('details', {}, el('summary', {}, 'The same on the command line'), el('pre', {}, need.commands.join('\n')));
