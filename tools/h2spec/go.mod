// h2spec with libraries of its time: newer ones tell closed connections differently.
module corvo/tools/h2spec

go 1.21

require (
	github.com/summerwind/h2spec v2.2.1+incompatible
	golang.org/x/net v0.0.0-20190206173232-65e2d4e15006
	golang.org/x/text v0.3.8
	github.com/spf13/cobra v1.8.1
	github.com/fatih/color v1.17.0
)
