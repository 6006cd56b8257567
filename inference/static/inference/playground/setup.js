// What the server wrote into the page: presets, limits, and texts in the visitor's language.

export const setup = JSON.parse(document.getElementById("setup").textContent);

/** The text called `name`, with its {places} filled in. */
export function text(name, values = {}) {
  return setup.texts[name].replace(/\{(\w+)\}/g, (place, key) => values[key] ?? place);
}

/** A new element with properties, and children (elements or strings). */
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
