// Calls for many sequences: all items are checked before the first sequence changes.

export function callAll(module, name, struct, items) {
  module.with((args) => {
    module.check(name, args.structs(struct, items), items.length, 0);
  });
}

export function evictAll(module, items) {
  module.with((args) => {
    const given = args.structs("kvevict_sequence_eviction", items);
    const need = args.out("kvevict_workspace");
    module.check("kvevict_sequences_workspace", given, items.length, need.address);
    const { address, byteLength } = module.workspace(need.get().bestBytes);
    module.check("kvevict_sequences_evict", given, items.length, address, byteLength, 0);
  }, true);
  return items.map(({ sequence }) => sequence.report());
}
