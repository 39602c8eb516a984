// Building the page. Text from models and tools is only ever set as text: there is no way here to make markup of it.

/** An element: `el('button', {class: 'main', onclick: f}, 'Send')`. A child is a node, a text, or nothing. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (key === 'value') made.value = value;
    else made.setAttribute(key, value === true ? '' : String(value));
  }
  made.append(...children.flat().filter(child => child !== undefined && child !== null && child !== false));
  return made;
}

/** Replaces what an element has. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter(child => child !== undefined && child !== null && child !== false));
}

/** A status as a word with a colour; the word alone says it. */
export const status = word => el('span', {class: `status ${String(word).replace(/[^a-z_]/g, '')}`}, String(word).replaceAll('_', ' '));

/** A time in the reader's zone. */
export const time = text => el('time', {datetime: text, title: text}, new Date(text).toLocaleString());

/** Money, from a decimal text. */
export const dollars = amount => `$${amount ?? 0}`;

/** A value as it would be written. */
export const json = value => el('pre', {}, JSON.stringify(value, null, 2));

/** An error of the server, or of the page. */
export function problem(error) {
  return el('div', {class: 'card problem', role: 'alert'},
    el('strong', {}, error.code ? `${error.message} (${error.code})` : String(error.message ?? error)),
    error.hint && el('div', {class: 'dim'}, error.hint));
}

/** Runs what a button does, with the button disabled meanwhile and an error shown beside it. */
export function action(label, work, attributes = {}) {
  const button = el('button', {type: 'button', ...attributes}, label);
  button.addEventListener('click', async () => {
    button.disabled = true;
    button.parentElement.querySelectorAll(':scope > .problem').forEach(old => old.remove());
    try {
      await work();
    } catch (error) {
      button.after(problem(error));
    } finally {
      button.disabled = false;
    }
  });
  return button;
}
