// Chooses the slots that stay: first and last ones, and between them those with
// the highest scores; ties to the lower or higher slot, NaN last.

const THREADS = 256;
const ITEMS = 4; // slots that an invocation looks at, one after another
const STEP = THREADS * ITEMS;

// Every invocation gets a place 0 .. 255, and `scan` of a number returns the sum
// over lower places and over all. `both` numbers of 16 bits go in one word.
const SCAN = `
var<workgroup> scan_sums: array<u32, ${THREADS}>;
fn place_of(t: u32) -> u32 { return t; }
fn scan(place: u32, number: u32) -> vec2u {
  scan_sums[place] = number;
  workgroupBarrier();
  for (var o = 1u; o < ${THREADS}u; o <<= 1u) {
    var before = 0u;
    if (place >= o) { before = scan_sums[place - o]; }
    workgroupBarrier();
    scan_sums[place] += before;
    workgroupBarrier();
  }
  let sums = vec2u(scan_sums[place] - number, scan_sums[${THREADS - 1}]);
  workgroupBarrier();
  return sums;
}`;

// Places follow the lanes of subgroups, however these lie in the workgroup: which
// subgroup comes first does not matter to what is computed by place.
const SUBGROUP_SCAN = `
var<workgroup> scan_sums: array<u32, ${THREADS}>;
var<workgroup> next_place: atomic<u32>;
var<private> lanes: u32;
fn place_of(t: u32) -> u32 {
  lanes = subgroupAdd(1u);
  let lane = subgroupExclusiveAdd(1u);
  var first = 0u;
  if (lane == 0u) { first = atomicAdd(&next_place, lanes); }
  return subgroupBroadcastFirst(first) + lane;
}
fn scan(place: u32, number: u32) -> vec2u {
  let before = subgroupExclusiveAdd(number);
  let group = place / lanes;
  if (place % lanes == lanes - 1u) { scan_sums[group] = before + number; }
  workgroupBarrier();
  var sums = vec2u(before, 0u);
  for (var i = 0u; i < ${THREADS}u / lanes; i++) {
    if (i < group) { sums.x += scan_sums[i]; }
    sums.y += scan_sums[i];
  }
  workgroupBarrier();
  return sums;
}`;

/**
 * A workgroup per list. Writes p.n_keep slots, ascending: p.n_sink first ones,
 * p.n_tail last ones and the best between. The cut is found by four passes over
 * 8 bits each of order-preserving keys, so that the time does not depend on the
 * scores.
 * @param {{ subgroups: boolean }} v
 */
export function selectSlots(v) {
  return {
    subgroups: v.subgroups,
    fields: [
      ['n_tokens', 'u32'],
      ['n_keep', 'u32'],
      ['n_sink', 'u32'],
      ['n_tail', 'u32'],
      ['higher_ties', 'u32'],
      ['scores_base', 'u32'],
      ['scores_stride', 'u32'],
      ['keep_base', 'u32'],
      ['keep_stride', 'u32'],
    ],
    buffers: [
      { name: 'scores', type: 'array<u32>' },
      { name: 'keep', type: 'array<u32>', write: true },
    ],
    code: `
${v.subgroups ? SUBGROUP_SCAN : SCAN}
var<workgroup> bins: array<atomic<u32>, 256>;
var<workgroup> cut: vec3u; // key so far, keys needed, keys equal to it

// Larger scores have larger keys; -0 equals +0, NaN is 0.
fn key_of(list: u32, slot: u32) -> u32 {
  let bits = scores[p.scores_base + list * p.scores_stride + slot];
  if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0u; }
  if (bits == 0x80000000u) { return 0x80000000u; }
  return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

@compute @workgroup_size(${THREADS})
fn main(@builtin(workgroup_id) id: vec3u, @builtin(local_invocation_index) t: u32) {
  let list = id.x;
  let first = p.n_sink;
  let end = p.n_tokens - p.n_tail;
  let place = place_of(t);
  var key = 0u;
  var n_needed = p.n_keep - p.n_sink - p.n_tail;
  var n_equal = 0u;
  var mask = 0u;
  for (var digit = 0u; digit < 4u; digit++) {
    let shift = 24u - 8u * digit;
    atomicStore(&bins[t], 0u);
    workgroupBarrier();
    for (var slot = first + t; slot < end; slot += ${THREADS}u) {
      let other = key_of(list, slot);
      if ((other & mask) == key) { atomicAdd(&bins[(other >> shift) & 255u], 1u); }
    }
    workgroupBarrier();
    if (t == 0u) {
      var needed = n_needed;
      var bin = 255u;
      loop {
        let n = atomicLoad(&bins[bin]);
        if (n >= needed || bin == 0u) { break; }
        needed -= n;
        bin--;
      }
      cut = vec3u(key | (bin << shift), needed, atomicLoad(&bins[bin]));
    }
    let now = workgroupUniformLoad(&cut);
    key = now.x;
    n_needed = now.y;
    n_equal = now.z;
    mask |= 255u << shift;
  }

  let out = p.keep_base + list * p.keep_stride;
  for (var i = t; i < p.n_sink; i += ${THREADS}u) { keep[out + i] = i; }
  // Equal keys stay if their rank is in first_rank .. end_rank.
  let first_rank = select(0u, n_equal - n_needed, p.higher_ties != 0u);
  let end_rank = first_rank + n_needed;
  var n_greater_before = 0u;
  var n_equal_before = 0u;
  for (var begin = first; begin < end; begin += ${STEP}u) {
    let own = begin + place * ${ITEMS}u;
    var keys: array<u32, ${ITEMS}>;
    var counts = 0u; // greater ones, and equal ones in the upper half
    for (var i = 0u; i < ${ITEMS}u; i++) {
      if (own + i < end) {
        let other = key_of(list, own + i);
        keys[i] = other;
        counts += select(0u, 1u, other > key) + select(0u, 0x10000u, other == key);
      }
    }
    let sums = scan(place, counts);
    var n_greater = n_greater_before + (sums.x & 0xffffu);
    var rank = n_equal_before + (sums.x >> 16u);
    for (var i = 0u; i < ${ITEMS}u; i++) {
      if (own + i < end) {
        let at = out + p.n_sink + n_greater + clamp(rank, first_rank, end_rank) - first_rank;
        if (keys[i] > key) {
          keep[at] = own + i;
          n_greater++;
        } else if (keys[i] == key) {
          if (rank >= first_rank && rank < end_rank) { keep[at] = own + i; }
          rank++;
        }
      }
    }
    n_greater_before += sums.y & 0xffffu;
    n_equal_before += sums.y >> 16u;
  }
  let tail = out + p.n_keep - p.n_tail;
  for (var i = t; i < p.n_tail; i += ${THREADS}u) { keep[tail + i] = end + i; }
}`,
  };
}
