module kvevict.dev/kvevict/bindings/go

go 1.19
