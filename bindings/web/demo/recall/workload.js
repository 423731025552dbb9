// A long text with needles in it, which asks for a quarter of them at its end:
// tools/recall/workload.h.
import { SplitMix64 } from "./random.js";
import { BOS, FILLERS, FIRST_FILLER, FIRST_KEY, FIRST_VALUE, KEYS, SEPARATOR } from
  "./vocabulary.js";

export const NEEDLES = 64;
export const QUESTIONS = 16;
export const MIN_TOKENS = 256;
export const MAX_TOKENS = 32768;

// Needles stay away from both ends of the text.
const HEAD_MARGIN = 16;
const TAIL_MARGIN = 64;
const QUESTION_TOKENS = 2 * QUESTIONS;

export function makeWorkload(nTokens, seed) {
  if (!(Number.isInteger(nTokens) && nTokens >= MIN_TOKENS && nTokens <= MAX_TOKENS)) {
    throw new RangeError(`tokens ${nTokens}: the model reads ${MIN_TOKENS} to ${MAX_TOKENS}`);
  }
  const random = new SplitMix64(seed);
  const tokens = new Int32Array(nTokens);
  tokens[0] = BOS;
  for (let i = 1; i < nTokens; ++i) tokens[i] = FIRST_FILLER + random.below(FILLERS);

  const range = (first) => random.shuffle(Array.from({ length: KEYS }, (_, i) => first + i));
  const keys = range(FIRST_KEY);
  const values = range(FIRST_VALUE);
  const slot = (nTokens - QUESTION_TOKENS - TAIL_MARGIN - HEAD_MARGIN) / NEEDLES;
  const slack = Math.max(1, Math.floor(slot) - 2);
  const needles = [];
  for (let n = 0; n < NEEDLES; ++n) {
    const position = HEAD_MARGIN + Math.floor(n * slot) + random.below(slack);
    tokens[position] = keys[n];
    tokens[position + 1] = values[n];
    needles.push({ position, key: keys[n], value: values[n], asked: false });
  }

  // The middle needle of every four.
  const step = NEEDLES / QUESTIONS;
  const questions = random.shuffle(
    Array.from({ length: QUESTIONS }, (_, i) => i * step + step / 2));
  const questionPosition = (i) => nTokens - QUESTION_TOKENS + 2 * i;
  questions.forEach((n, i) => {
    needles[n].asked = true;
    tokens[questionPosition(i)] = needles[n].key;
    tokens[questionPosition(i) + 1] = SEPARATOR;
  });
  return { tokens, needles, questions, questionPosition };
}
