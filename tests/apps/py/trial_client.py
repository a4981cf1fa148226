# Connections that talk all at once, and check every byte, until a line comes.
talks = [Talk() for _ in range(count)]
together_until_line("many", talks)
print("over", flush=True)
