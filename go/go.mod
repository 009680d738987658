module watchcore

go 1.25
