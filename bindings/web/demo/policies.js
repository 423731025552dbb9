// The policies that the page offers, as texts of the core.
export const policies = [
  { text: "none", name: "none", does: "keeps everything" },
  { text: "streaming-llm", name: "StreamingLLM", does: "keeps the first 4 tokens and the latest" },
  { text: "snapkv", name: "SnapKV", does: "keeps what the last 32 queries attend to" },
  { text: "pyramidkv", name: "PyramidKV", does: "is SnapKV with more room in early layers" },
  { text: "tova", name: "TOVA", does: "keeps what the last query attends to" },
  { text: "h2o", name: "H2O", does: "keeps what all queries attended to" },
  { text: "knorm", name: "key norm", does: "keeps keys of small norm" },
  { text: "keydiff", name: "KeyDiff", does: "keeps keys unlike the mean key" },
  { text: "lagkv", name: "LagKV", does: "keeps rows that stand out from the next ones" },
  { text: "random:recent=32", name: "random", does: "keeps the last 32 tokens and random ones" },
];

export const budgets = [128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072];
