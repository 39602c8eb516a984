// Verifies a log in this browser, from its raw bytes, as FORMAT.md says: nothing that the server says about the log is believed. Which keys
// are trusted is the one thing that it takes from the server, unless a key is dropped too.

import {bytes, get, path} from './api.js';
import {el, fill, problem} from './dom.js';
import {check, ed25519, pemKey} from './check.js';

const CANNOT = 'This browser can’t check Ed25519 signatures here (it needs Web Crypto: a current browser, and this page on loopback or HTTPS). No verdict is given.';

/** The keys that the user of the server trusts: the 32 bytes of each by its fingerprint. */
async function trustedKeys() {
  const {keys} = await get('/v1/keys');
  const trusted = new Map();
  for (const key of keys.filter(key => key.is_trusted && key.public_key)) {
    const raw = pemKey(key.public_key);
    trusted.set(await fingerprint(raw), {raw, owner: key.owner});
  }
  return trusted;
}

async function fingerprint(raw) {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', raw));
  return Array.from(digest, byte => byte.toString(16).padStart(2, '0')).join('');
}

/** The verdict about bytes, as an element. */
export async function verdict(log, thread, keys) {
  const verify = await ed25519();
  if (!verify) return el('div', {class: 'card problem'}, CANNOT);
  const found = await check(log, thread, new Map([...keys].map(([name, key]) => [name, key.raw])), verify);
  return shown(found, keys);
}

function shown(found, keys) {
  const signers = [...found.signers].map(([key, versions]) => `${keys.get(key)?.owner ?? 'unknown'} (key ${key.slice(0, 16)}, ${versions} versions)`);
  const {version} = found;
  const proven = version === null
    ? 'Nothing of this log is proven.'
    : `Unchanged up to version ${version} since it was signed by ${signers.join(', then ')}: ${found.signatures} signatures over ${found.bytes.toLocaleString()} bytes, checked in this browser.`;
  const word = {whole: 'good', tail: 'warn', damaged: 'bad'}[found.end];
  const end = {
    whole: '',
    tail: `Behind it are ${found.rest.toLocaleString()} bytes that no signature covers: a commit in progress, or foreign bytes.`,
    damaged: `Line ${found.line} does not hold: ${found.why}.` + (found.follows !== null ? ` Signed versions follow the damage, up to version ${found.follows}.` : ''),
  }[found.end];
  return el('div', {class: 'card', role: 'status'},
    el('p', {class: version === null ? 'bad' : word}, el('strong', {}, proven), ' ', end),
    el('p', {class: 'dim'}, 'Not proven: that what was signed is true or complete, anything against the holder of the key, and that this is the last version, unless its head was kept elsewhere. Blobs are not part of this check.'));
}

/** Verifies a thread of this store. */
export async function verifyThread(thread) {
  const [log, keys] = await Promise.all([bytes(path('threads', thread, 'transcript.jsonl')), trustedKeys()]);
  return verdict(log, thread, keys);
}

export async function open() {
  const result = el('div', {});
  const file = el('input', {type: 'file', id: 'file', multiple: true});
  const whole = async files => {
    fill(result, el('p', {class: 'dim'}, 'Checking…'));
    try {
      fill(result, ...await verifyFiles(files));
    } catch (error) {
      fill(result, problem(error));
    }
  };
  file.addEventListener('change', () => whole([...file.files]));
  const drop = el('div', {class: 'card', 'data-drop': true},
    el('label', {for: 'file'}, 'A transcript.jsonl or an archive of `selvedge export`; with a public key (.pem) beside it, only that key is trusted. '), file);
  drop.addEventListener('dragover', event => event.preventDefault());
  drop.addEventListener('drop', event => {
    event.preventDefault();
    whole([...event.dataTransfer.files]);
  });
  const element = el('section', {}, el('h1', {}, 'Verify'),
    el('p', {}, 'Logs are checked here, in the browser: every hash and every signature, from the bytes themselves. The files stay on this computer.'),
    drop, result);
  return {element};
}

async function verifyFiles(files) {
  const keys = new Map();
  const logs = [];
  for (const file of files) {
    const content = new Uint8Array(await file.arrayBuffer());
    if (file.name.endsWith('.pem')) {
      const raw = pemKey(new TextDecoder().decode(content));
      keys.set(await fingerprint(raw), {raw, owner: file.name});
    } else if (isArchive(content)) {
      logs.push(...archived(content));
    } else {
      logs.push({name: null, bytes: content});
    }
  }
  const trusted = keys.size > 0 ? keys : await trustedKeys();
  const shown = [];
  for (const log of logs) {
    const thread = log.name ?? named(log.bytes);
    shown.push(el('h2', {}, thread ?? 'A file that is no log'), await verdict(log.bytes, thread, trusted));
  }
  return shown.length > 0 ? shown : [el('p', {class: 'dim'}, 'No log was chosen.')];
}

/** The thread that line 0 names. */
function named(log) {
  const end = log.indexOf(10);
  try {
    return JSON.parse(new TextDecoder().decode(log.subarray(0, end < 0 ? 0 : end))).thread_id;
  } catch {
    return null;
  }
}

const text = (block, from, length) => new TextDecoder().decode(block.subarray(from, from + length)).replace(/\0.*$/s, '');
const isArchive = content => content.length >= 512 && text(content, 257, 5) === 'ustar';

/** The logs in a tar archive, by the folders they are in: the name of the folder is the thread that the log must be of. */
function* archived(content) {
  for (let at = 0; at + 512 <= content.length && content[at] !== 0;) {
    const prefix = text(content, at + 345, 155);
    const name = (prefix ? `${prefix}/` : '') + text(content, at, 100);
    const size = parseInt(text(content, at + 124, 12), 8) || 0;
    if (name.endsWith('/transcript.jsonl')) {
      const folder = name.split('/').at(-2);
      yield {name: folder.replaceAll('~', '/'), bytes: content.subarray(at + 512, at + 512 + size)};
    }
    at += 512 + Math.ceil(size / 512) * 512;
  }
}
