enums.go // GrownKind: what the test adds to the header, see grow.sh. type GrownKind int32
enums.go // Before. GrownKindOne GrownKind = 1 // After, and longer. GrownKind2Bit GrownKind = -2 )
enums.go // It grew. ReasonGrown Reason = 900
structs.go GrownLimit = 2147483648 GrownLeast = -1 )
structs.go GrownField uint32
structs.go // Grown is kvevict_grown. type Grown struct { StructSize uint32 Kind int32 Address uint64 Nested GrownPart Parts [2]GrownPart Kinds [3]int32 Bytes [5]uint8
structs.go Tables uintptr Pointers [2]uintptr Call uintptr Calls [2]uintptr Context uintptr Params float64 BrokenLine int64 Reserved [3]uint32 }
native.go func Kvevict_grown_take(arg1 *Grown, arg2 int32) (_swig_ret error)
