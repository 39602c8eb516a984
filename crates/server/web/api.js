// The server: requests with the token of this tab, and the event stream.

const KEPT = 'selvedge-token';
let token = sessionStorage.getItem(KEPT);

/** A refusal of the server. */
export class Refused extends Error {
  constructor(status, body) {
    super(body.detail ?? `the server answered ${status}`);
    this.status = status;
    this.code = body.code;
    this.hint = body.hint;
  }
}

async function answer(path, options = {}) {
  const headers = {...options.headers};
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(path, {...options, headers, cache: 'no-store'});
  if (response.ok) return response;
  let body = {};
  try { body = await response.json(); } catch { /* not JSON: the status says enough */ }
  throw new Refused(response.status, body);
}

export const get = async path => (await answer(path)).json();
export const bytes = async path => new Uint8Array(await (await answer(path)).arrayBuffer());

/** Writes. With a key, a request that is sent twice counts once. */
export async function post(path, body = {}, key) {
  const headers = {'Content-Type': 'application/json'};
  if (key) headers['Idempotency-Key'] = key;
  return (await answer(path, {method: 'POST', headers, body: JSON.stringify(body)})).json();
}

/** A key for one use of a form. */
export const newKey = () => crypto.randomUUID?.() ?? Array.from(crypto.getRandomValues(new Uint8Array(16)), byte => byte.toString(16).padStart(2, '0')).join('');

export const path = (...parts) => '/v1/' + parts.map(encodeURIComponent).join('/');

/** Exchanges the code of a one-time link for a token, which this tab keeps until it is closed. */
export async function begin() {
  const code = new URLSearchParams(location.hash.slice(1)).get('code');
  if (code) {
    history.replaceState(null, '', '/#/threads');
    token = null;
    keep((await post('/v1/session', {code})).token);
  }
}

export function keep(text) {
  token = text;
  sessionStorage.setItem(KEPT, text);
}

/**
 * Follows the events of the store until the tab is closed. After a break it continues behind the last committed event that it had,
 * so none is lost or seen twice. `tell(name, data)` gets every event, `state(word)` how the connection is.
 */
export async function follow(tell, state) {
  let last = null;
  let pause = 500;
  for (;;) {
    try {
      const headers = last === null ? {} : {'Last-Event-ID': last};
      const response = await answer('/v1/events', {headers});
      state('live');
      pause = 500;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const {value, done} = await reader.read();
        if (done) break;
        rest += value;
        const blocks = rest.split('\n\n');
        rest = blocks.pop();
        for (const block of blocks) {
          const event = parse(block);
          if (!event.data) continue;
          const data = JSON.parse(event.data);
          if (event.name === 'hello' && last === null) last = String(data.position);
          if (event.id) last = event.id;
          tell(event.name, data);
        }
      }
    } catch (error) {
      if (error.status === 401 || error.status === 403) {
        state('no token');
        return;
      }
    }
    state('reconnecting…');
    await new Promise(resolve => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, 10_000);
  }
}

function parse(block) {
  const event = {name: 'message', data: '', id: null};
  for (const line of block.split('\n')) {
    if (line.startsWith('event:')) event.name = line.slice(6).trim();
    else if (line.startsWith('data:')) event.data += line.slice(5).trim();
    else if (line.startsWith('id:')) event.id = line.slice(3).trim();
  }
  return event;
}
