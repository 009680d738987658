module watchcore

go 1.24
