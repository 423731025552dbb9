// Random numbers of the recall model and its text: those of tools/recall/random.h.

export class SplitMix64 {
  #state;

  constructor(seed) {
    this.#state = BigInt.asUintN(64, BigInt(seed));
  }

  next() {
    this.#state = BigInt.asUintN(64, this.#state + 0x9e3779b97f4a7c15n);
    let z = this.#state;
    z = BigInt.asUintN(64, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
    z = BigInt.asUintN(64, (z ^ (z >> 27n)) * 0x94d049bb133111ebn);
    return z ^ (z >> 31n);
  }

  below(n) {
    return Number(this.next() % BigInt(n));
  }

  // In [0, 1), with 53 bits.
  unit() {
    return Number(this.next() >> 11n) * 2 ** -53;
  }

  // Fisher-Yates, from the end.
  shuffle(items) {
    for (let i = items.length - 1; i > 0; --i) {
      const j = this.below(i + 1);
      [items[i], items[j]] = [items[j], items[i]];
    }
    return items;
  }
}

// n nearly gaussian values of a standard deviation.
export function gauss(seed, n, deviation) {
  const random = new SplitMix64(seed);
  // A sum of four uniform numbers has variance 1/3.
  const scale = deviation * Math.sqrt(3);
  return Float32Array.from({ length: n }, () => {
    let sum = 0;
    for (let i = 0; i < 4; ++i) sum += random.unit();
    return scale * (sum - 2);
  });
}
