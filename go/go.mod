module github.com/watchcore/watchcore/go

go 1.25
