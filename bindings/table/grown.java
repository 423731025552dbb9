GrownKind.java /** What the test adds to the header, see grow.sh. */ public enum GrownKind implements CEnum { /** Before. */ ONE(1), /** After, and longer. */ KIND_2_BIT(-2);
Reason.java /** It grew. */ GROWN(900),
Abi.java static final int GROWN_LIMIT = (int) 2147483648L; static final int GROWN_LEAST = -1;
Abi.java static final int GROWN_FIELD =
Abi.java class Grown { static final int SIZEOF = 176; static final int STRUCT_SIZE = 0; static final int KIND = 4; static final int ADDRESS = 8;
Abi.java static final int NESTED = 16; static final int PARTS = 32; static final int KINDS = 64; static final int BYTES = 76; static final int TABLES = 88;
Abi.java static final int POINTERS = 96; static final int CALL = 112; static final int CALLS = 120; static final int CONTEXT = 136; static final int PARAMS = 144;
Abi.java static final int BROKEN_LINE = 152; static final int RESERVED = 160; }
Native.java static void kvevict_grown_take(long grown, int kind)
