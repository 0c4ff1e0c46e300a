def render(plan, color=False, width=100): return ""
