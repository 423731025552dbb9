// Checks of arguments. A message names the parameter, its value and the bound.

/** @param {string} message @returns {never} */
export function refuse(message) {
  throw new RangeError(message);
}

/**
 * @param {string} name
 * @param {unknown} value
 * @param {number} least
 * @param {number} most
 * @returns {number} value, an integer in [least, most].
 */
export function integer(name, value, least, most) {
  if (typeof value !== 'number' || !Number.isInteger(value)) {
    throw new TypeError(`${name} ${String(value)} is not an integer`);
  }
  if (value < least) refuse(`${name} ${value} < ${least}`);
  if (value > most) refuse(`${name} ${value} > ${most}`);
  return value;
}

/**
 * @param {string} name
 * @param {unknown} value
 * @returns {number} value, finite.
 */
export function finite(name, value) {
  if (typeof value !== 'number' || !Number.isFinite(value)) {
    throw new TypeError(`${name} ${String(value)} is not a finite number`);
  }
  return value;
}

/**
 * @template {string} T
 * @param {string} name
 * @param {unknown} value
 * @param {readonly T[]} words
 * @returns {T} value, one of the words.
 */
export function word(name, value, words) {
  if (!words.includes(/** @type {T} */ (value))) {
    refuse(`${name} ${String(value)} is none of ${words.join(', ')}`);
  }
  return /** @type {T} */ (value);
}

/**
 * @param {string} name
 * @param {unknown} value
 * @returns {any} value, an object.
 */
export function object(name, value) {
  if (typeof value !== 'object' || value === null) {
    throw new TypeError(`${name} ${String(value)} is not an object`);
  }
  return value;
}

/**
 * @param {string} name
 * @param {any} value
 * @param {string[]} keys
 */
export function onlyKeys(name, value, keys) {
  for (const key of Object.keys(object(name, value))) {
    if (!keys.includes(key)) {
      refuse(`${name}.${key} is unknown: ${name} has ${keys.join(', ')}`);
    }
  }
}
