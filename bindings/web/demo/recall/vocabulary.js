// Tokens of the recall model and the code that represents each: tools/recall/vocabulary.h.
import { SplitMix64 } from "./random.js";

export const BOS = 0;
export const SEPARATOR = 1;
export const UNKNOWN = 2; // the answer "not found"
export const FIRST_KEY = 64;
export const FIRST_VALUE = 128;
export const FIRST_FILLER = 192;
export const KEYS = 64; // there are as many values
export const FILLERS = 128;
export const VOCABULARY = 320;
export const CODE_BITS = 32;

function bitCount(x) {
  let n = 0;
  for (let rest = x; rest !== 0; rest &= rest - 1) ++n;
  return n;
}

// 32 bits that differ in d places correlate by 1 - d/16: any two codes by at most 0.375.
function drawCodes() {
  const random = new SplitMix64(0x6b76657669637431n);
  const codes = [];
  while (codes.length < VOCABULARY) {
    const code = Number(random.next() >> 32n);
    const isDistinct = codes.every((other) => {
      const distance = bitCount(code ^ other);
      return distance >= 10 && distance <= 22;
    });
    if (isDistinct) codes.push(code);
  }
  return codes;
}
const codes = drawCodes();
const unit = Math.fround(1 / Math.sqrt(CODE_BITS));

// Dimension i of a token's code.
export const codeValue = (token, i) => ((codes[token] >>> i) & 1) !== 0 ? unit : -unit;
