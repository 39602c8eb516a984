// The check of a log, by FORMAT.md alone. It uses nothing of a page, so that it runs in tests too.

const ORDER = new Map(Object.entries({recovery: 1, key_rotated: 1, thread_created: 2, run_started: 3, snapshot: 4, message: 5, patch: 6, state_action: 7, run_finished: 9, checkpoint: 10}));
for (const name of `call_opened tool_intent tool_outcome suspended asked decision usage account_opened reserved issued settled released
  corrected account_closed account_reopened reserved_again account_raised account_stopped request_answered manifest_changed thread_handoff
  thread_resumed child_spawned child_settled context_limit_reached hook_fired context_injected capability_denied sandboxed graph_started
  step_started step_completed foreach_completed graph_completed graph_error graph_cancelled blob_erased`.split(/\s+/)) ORDER.set(name, 8);

const LINE_BYTES_MAX = 8_388_608;
const NUMBER_MAX = 2n ** 63n - 1n;
const DOMAIN = new TextEncoder().encode('selvedge/checkpoint/1\0');
const ENDING = new TextEncoder().encode(',"sig":"');

/**
 * Checks a log. `keys` has the 32 bytes of each trusted key by its fingerprint; `verify(key, message, signature)` is Ed25519.
 * Returns `{version, bytes, signatures, signers, end, line, why, rest, follows}`: `version` is the last one that is proven, a BigInt, or null; `end` is
 * `whole`, `tail` (good lines or a torn one without a signature follow) or `damaged`.
 */
export async function check(log, thread, keys, verify) {
  const state = {version: -1n, epoch: 0n, first: null, signers: new Map(), last: null, left: new Set()};
  const hash = new Sha256();
  const proven = {version: null, bytes: 0, signatures: 0};
  let events = [];
  let start = 0;
  let seq = 0n;
  const done = more => ({...proven, signers: state.signers, line: Number(seq) + 1, why: '', rest: log.length - proven.bytes, follows: null, ...more});
  while (start < log.length) {
    const end = log.indexOf(10, start);
    if (end < 0) return done({end: 'tail'});
    const raw = log.subarray(start, end + 1);
    try {
      const line = readLine(raw, thread, seq, state, events);
      events.push(line);
      if (line.kind === 'checkpoint') {
        const {due, by, signature} = readCheckpoint(raw, line.said, events, start, hash, state, keys);
        need(await verify(keys.get(by), join(DOMAIN, raw.subarray(0, raw.length - 98)), signature), 'the signature is not valid');
        if (state.last !== null && state.last !== by) state.left.add(state.last);
        state.version = due;
        state.epoch = line.said.epoch;
        state.last = by;
        state.signers.set(by, (state.signers.get(by) ?? 0) + 1);
        Object.assign(proven, {version: due, bytes: end + 1, signatures: proven.signatures + 1});
        events = [];
      }
    } catch (error) {
      if (!(error instanceof Broken)) throw error;
      return done({end: 'damaged', why: error.message, follows: await follows(log, start, thread, state, keys, verify)});
    }
    hash.update(raw);
    start = end + 1;
    seq += 1n;
  }
  return done({end: proven.bytes === log.length && proven.version !== null ? 'whole' : 'tail'});
}

class Broken extends Error {}

function need(holds, why) {
  if (!holds) throw new Broken(why);
}

function readLine(raw, thread, seq, state, events) {
  need(raw.length <= LINE_BYTES_MAX, 'the line is too long');
  need(raw[0] === 0x7b && raw[raw.length - 2] === 0x7d, 'the line is no object');
  const line = parse(raw.subarray(0, raw.length - 1));
  need(line instanceof Map && line.size === 5, 'the line has other members');
  const kind = line.get('event_type');
  const at = line.get('timestamp');
  const payload = line.get('payload');
  need(line.get('seq') === seq, 'the line has another number');
  need(line.get('thread_id') === thread, 'the line is of another thread');
  need(typeof kind === 'string' && ORDER.has(kind), 'the event type is unknown');
  need(payload instanceof Map, 'the payload is no object');
  need(isTime(at), 'the time has another form');
  need((kind === 'thread_created') === (seq === 0n), 'a log begins with its creation, and only there');
  const before = events.length > 0 ? ORDER.get(events[events.length - 1].kind) : 0;
  need(ORDER.get(kind) >= before, 'the events stand in another order');
  const said = Object.fromEntries([...payload].filter(([name]) => name !== '__proto__'));
  if (seq === 0n) {
    need(said.format === 1n && said.segment === 0n && /^[0-9a-f]{32}$/.test(said.log_id), 'the log has another format');
    state.first = said;
  }
  return {kind, said};
}

function readCheckpoint(raw, said, events, start, hash, state, keys) {
  let due = state.version + 1n;
  const lost = events.filter(({kind, said}) => kind === 'recovery' && said.found === 'loss').map(event => event.said);
  if (lost.length > 0) {
    need(lost.length === 1 && lost[0].from_version === due && isNumber(lost[0].to_version) && lost[0].to_version >= due, 'the recorded loss does not fit');
    due = lost[0].to_version + 1n;
  }
  need(said.version === due && due <= NUMBER_MAX, 'the version is not the next one');
  need(said.log_id === state.first.log_id && said.segment === 0n, 'the checkpoint is of another log');
  need(said.byte_offset === BigInt(start), 'the checkpoint stands at another place');
  need(said.hash === hash.hex(), 'the bytes before this checkpoint are not the ones that were signed');
  need(isNumber(said.epoch) && said.epoch >= state.epoch, 'the epoch goes back');
  const by = said.signer;
  need(typeof by === 'string' && keys.has(by), 'it is signed by a key that is not trusted');
  if (state.last !== null && by !== state.last) {
    const isRotated = events.some(({kind, said}) => kind === 'key_rotated' && said.from === state.last && said.to === by);
    need(isRotated && !state.left.has(by), 'the signer changes without a rotation');
  }
  return {due, by, signature: signatureOf(raw)};
}

/** The signature of a checkpoint line, which has a fixed ending. */
function signatureOf(raw) {
  const at = raw.length - 98;
  need(at > 0 && ENDING.every((byte, place) => raw[at + place] === byte), 'the line has another ending');
  need(raw[raw.length - 4] === 0x22 && raw[raw.length - 3] === 0x7d && raw[raw.length - 2] === 0x7d, 'the line has another ending');
  const text = String.fromCharCode(...raw.subarray(at + 8, raw.length - 4));
  const signature = base64url(text);
  need(signature !== null && signature.length === 64, 'the signature has another form');
  return signature;
}

/** The highest version that was signed after a bad line, or null. */
async function follows(log, start, thread, state, keys, verify) {
  let highest = null;
  for (let at = start; at < log.length;) {
    const newline = log.indexOf(10, at);
    if (newline < 0) break;
    const whole = log.subarray(at, newline + 1);
    at = newline + 1;
    for (const raw of [whole, afterLastStart(whole)]) {
      if (raw === null) continue;
      try {
        const line = parse(raw.subarray(0, raw.length - 1));
        if (!(line instanceof Map) || line.get('event_type') !== 'checkpoint' || line.get('thread_id') !== thread) continue;
        const said = Object.fromEntries(line.get('payload'));
        if (said.log_id !== state.first?.log_id || !isNumber(said.version) || said.version <= state.version || !keys.has(said.signer)) continue;
        const signature = signatureOf(raw);
        if (await verify(keys.get(said.signer), join(DOMAIN, raw.subarray(0, raw.length - 98)), signature)) {
          highest = highest === null || said.version > highest ? said.version : highest;
        }
      } catch (error) {
        if (!(error instanceof Broken) && !(error instanceof TypeError)) throw error;
      }
    }
  }
  return highest;
}

const LINE_START = new TextEncoder().encode('{"seq":');

function afterLastStart(raw) {
  for (let at = raw.length - LINE_START.length; at > 0; at -= 1) {
    if (LINE_START.every((byte, place) => raw[at + place] === byte)) return raw.subarray(at);
  }
  return null;
}

const isNumber = value => typeof value === 'bigint' && value <= NUMBER_MAX;

function isTime(text) {
  if (typeof text !== 'string' || !/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/.test(text) || text < '1970') return false;
  const at = new Date(`${text.slice(0, 23)}Z`);
  return !Number.isNaN(at.getTime()) && at.toISOString().slice(0, 23) === text.slice(0, 23);
}

function join(first, second) {
  const joined = new Uint8Array(first.length + second.length);
  joined.set(first);
  joined.set(second, first.length);
  return joined;
}

/** Canonical base64url without padding, or null. */
function base64url(text) {
  if (!/^[A-Za-z0-9_-]*$/.test(text)) return null;
  const bytes = Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/').padEnd(Math.ceil(text.length / 4) * 4, '=')), c => c.charCodeAt(0));
  const again = btoa(String.fromCharCode(...bytes)).replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, '');
  return again === text ? bytes : null;
}

/** The 32 bytes of a public key in PEM (SubjectPublicKeyInfo of Ed25519). */
export function pemKey(pem) {
  const body = /-----BEGIN PUBLIC KEY-----([A-Za-z0-9+/=\s]+)-----END PUBLIC KEY-----/.exec(pem)?.[1];
  const der = body && Uint8Array.from(atob(body.replace(/\s/g, '')), c => c.charCodeAt(0));
  const head = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
  if (!der || der.length !== 44 || !head.every((byte, place) => der[place] === byte)) throw new Error('this is no public key of Ed25519 in PEM');
  return der.subarray(12);
}

/** Ed25519 by Web Crypto, strict; null where the browser can't. */
export async function ed25519() {
  if (!globalThis.crypto?.subtle) return null;
  const imported = new Map();
  const importKey = async key => {
    if (!imported.has(key)) imported.set(key, await crypto.subtle.importKey('raw', key, {name: 'Ed25519'}, false, ['verify']));
    return imported.get(key);
  };
  try {
    await importKey(Uint8Array.from(atob('11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo='), c => c.charCodeAt(0)));
  } catch {
    return null;
  }
  return async (key, message, signature) => {
    if (!isStrictPoint(key) || !isStrictPoint(signature.subarray(0, 32))) return false;
    return crypto.subtle.verify({name: 'Ed25519'}, await importKey(key), signature, message);
  };
}

const P = 2n ** 255n - 19n;
// The y coordinates of the eight points of small order.
const SMALL = [0n, 1n, P - 1n,
  0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n,
  0x7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd84d3d706a17c7n];

/** Whether an encoding is canonical (y < p) and not a point of small order. */
function isStrictPoint(bytes) {
  let y = 0n;
  for (let place = 31; place >= 0; place -= 1) y = (y << 8n) | BigInt(place === 31 ? bytes[place] & 0x7f : bytes[place]);
  return y < P && !SMALL.includes(y);
}

/** Strict JSON (RFC 8259): no duplicate keys, no lone surrogates, at most 64 levels. Plain whole numbers become BigInt, others Number. */
export function parse(bytes) {
  let text;
  try {
    text = new TextDecoder('utf-8', {fatal: true, ignoreBOM: true}).decode(bytes);
  } catch {
    throw new Broken('the line is not UTF-8');
  }
  let at = 0;
  const fail = () => { throw new Broken('the line is not JSON'); };
  const space = () => { while (' \t\r\n'.includes(text[at]) && at < text.length) at += 1; };
  const take = word => { if (!text.startsWith(word, at)) fail(); at += word.length; };
  const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?/y;
  const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y;
  const string = () => {
    STRING.lastIndex = at;
    const found = STRING.exec(text)?.[0] ?? fail();
    at += found.length;
    const value = JSON.parse(found);
    if (/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(value)) fail();
    return value;
  };
  const value = depth => {
    if (depth > 64) throw new Broken('the line is nested too deeply');
    space();
    const next = text[at];
    if (next === '{') {
      at += 1;
      const made = new Map();
      space();
      if (text[at] === '}') { at += 1; return made; }
      for (;;) {
        space();
        const name = string();
        if (made.has(name)) throw new Broken('the line has a key twice');
        space();
        take(':');
        made.set(name, value(depth + 1));
        space();
        if (text[at] === '}') { at += 1; return made; }
        take(',');
      }
    }
    if (next === '[') {
      at += 1;
      const made = [];
      space();
      if (text[at] === ']') { at += 1; return made; }
      for (;;) {
        made.push(value(depth + 1));
        space();
        if (text[at] === ']') { at += 1; return made; }
        take(',');
      }
    }
    if (next === '"') return string();
    if (next === 't') { take('true'); return true; }
    if (next === 'f') { take('false'); return false; }
    if (next === 'n') { take('null'); return null; }
    NUMBER.lastIndex = at;
    const found = NUMBER.exec(text)?.[0] ?? fail();
    at += found.length;
    if (/^\d+$/.test(found)) return BigInt(found);
    const number = Number(found);
    if (!Number.isFinite(number)) fail();
    return number;
  };
  const made = value(1);
  space();
  if (at !== text.length) fail();
  return made;
}

const K = Uint32Array.from([
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
  0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
  0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
  0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
  0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
  0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2]);

/** A running SHA-256, because Web Crypto has none: the hash of every prefix is needed, and hashing each anew would be quadratic. */
export class Sha256 {
  #state = Uint32Array.from([0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19]);
  #block = new Uint8Array(64);
  #words = new Uint32Array(64);
  #length = 0;

  update(bytes) {
    let used = this.#length % 64;
    this.#length += bytes.length;
    for (let from = 0; from < bytes.length;) {
      const part = bytes.subarray(from, from + 64 - used);
      this.#block.set(part, used);
      from += part.length;
      used += part.length;
      if (used === 64) {
        this.#compress();
        used = 0;
      }
    }
  }

  /** The hash of what was added so far; more may follow. */
  hex() {
    const state = this.#state.slice();
    const block = this.#block.slice();
    const length = this.#length;
    const used = length % 64;
    const padding = new Uint8Array((used < 56 ? 64 : 128) - used);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(length / 0x20000000));
    view.setUint32(padding.length - 4, (length << 3) >>> 0);
    this.update(padding);
    const hex = Array.from(this.#state, word => word.toString(16).padStart(8, '0')).join('');
    this.#state = state;
    this.#block = block;
    this.#length = length;
    return hex;
  }

  #compress() {
    const words = this.#words;
    const view = new DataView(this.#block.buffer);
    const turn = (word, by) => (word >>> by) | (word << (32 - by));
    for (let i = 0; i < 16; i += 1) words[i] = view.getUint32(i * 4);
    for (let i = 16; i < 64; i += 1) {
      const a = words[i - 15];
      const b = words[i - 2];
      words[i] = words[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + words[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
    }
    let [a, b, c, d, e, f, g, h] = this.#state;
    for (let i = 0; i < 64; i += 1) {
      const first = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + words[i]) | 0;
      const second = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + second) | 0];
    }
    const state = this.#state;
    [a, b, c, d, e, f, g, h].forEach((word, place) => { state[place] += word; });
  }
}
