print("more")
